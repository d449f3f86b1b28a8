"""How fast calls of a batched function come, what they cost, and how long lots of them take."""

from __future__ import annotations

import math
from typing import Final

from gpu_runner.lots import MOST_CALLS
from gpu_runner.service_times import ServiceTime
from headrace.domain import Manifest
from headrace.histograms import cost_bucket

_WEIGHT: Final = 0.1  # of the newest call in the running means
_RECOVERY: Final = 1.02  # by so much may lots cost more again after each that memory was enough for
_GAPS: Final = 2.0  # so many gaps without a call, and no more of them are expected
_PAUSES: Final = 2.0  # a pause says nothing about how calls come once they do: it counts as so many waits


class Pace:
    """What is known of one batched function.

    Args:
        manifest: the function's.
        times: how long its lots take.
    """

    def __init__(self, manifest: Manifest, times: ServiceTime) -> None:
        assert manifest.batch is not None
        self.batch = manifest.batch
        self._times = times
        self.max_cost = self.batch.max_cost
        """Of a lot: less than the function allows for a while after memory wasn't enough for one."""
        self.mean_cost = _mean_cost(manifest)
        """Of a call: the running mean, exponentially weighted."""
        self._gap_s = 0.0
        self._last_at = 0.0
        self._return_s = 0.0
        self._answered_at = 0.0
        self._answered = 0  # together, by the last lot
        self._away = 0  # callers who have been answered and haven't called since
        self._is_first = False  # whether the next call is the first since then

    def arrived(self, now: float, cost: float) -> None:
        """A direct call has come, at an instant of `time.monotonic()`."""
        self.priced(cost)
        self._away = max(0, self._still_away(now) - 1)
        longest_s = _PAUSES * self.batch.max_wait
        if self._is_first:
            self._return_s = _smoothed(self._return_s, min(now - self._answered_at, longest_s))
            self._is_first = False
        self._gap_s = _smoothed(self._gap_s, min(now - self._last_at, longest_s))
        self._last_at = now

    def priced(self, cost: float) -> None:
        """A call has come that costs so much."""
        self.mean_cost += _WEIGHT * (cost - self.mean_cost)

    def calls_for(self, cost: float) -> int:
        """How many calls of the usual kind cost so much together; at least one."""
        if self.mean_cost <= 0:
            return MOST_CALLS
        return max(1, min(MOST_CALLS, int(cost / self.mean_cost + 1e-6)))

    @property
    def calls_per_lot(self) -> int:
        """How many calls should fill a lot."""
        return self.calls_for(self.max_cost)

    def answered(self, now: float, calls: int) -> None:
        """So many direct calls have been answered together, at an instant of `time.monotonic()`."""
        self._away = self._still_away(now) + calls
        self._answered_at, self._answered, self._is_first = now, calls, True

    def ended(self, cost: float, calls: int, too_many: int) -> None:
        """A lot has ended.

        Args:
            cost: of all of it.
            calls: how many it had.
            too_many: for how many of them memory ran out; 0: it was enough.
        """
        if not too_many:
            self.max_cost = min(self.batch.max_cost, self.max_cost * _RECOVERY)
        elif cost > 0:
            self.max_cost = min(self.max_cost, cost * too_many / calls / 2)

    def expected_s(self, cost: float) -> float:
        """How long a lot of that cost should take; 0 while nothing is known.

        By what lots of about that cost took; else in proportion, but no longer than lots take as a rule: that
        larger ones share their time well is what batching is for, and they are measured soon enough.
        """
        spread = self._times.by_cost.get(cost_bucket(cost)) if cost > 0 else None
        if spread is not None:
            return spread.mean
        return min(self._times.mean, self._times.per_cost * cost)

    @property
    def comes_fast(self) -> bool:
        """Whether the next call is expected within `max_wait`: only then does it pay to wait for it."""
        return 0 < self._pause_s < self.batch.max_wait

    def others_to_come(self, free: int) -> int:
        """How many more calls are likely to follow the one that has just come, and should run with it.

        They are the callers of the last lot who aren't back, or their share where more slots are free.

        Args:
            free: how many lots could start now.
        """
        share = math.ceil((self._away + 1) / free)
        return max(0, min(share, self._answered) - 1)

    def quiet_at(self, since: float) -> float:
        """When no other call is to be expected any more, unless one comes before."""
        return max(since, self._last_at) + _GAPS * self._pause_s

    def _still_away(self, now: float) -> int:
        """How many answered callers may be about to call: none after a pause."""
        return self._away if now < self.quiet_at(self._answered_at) else 0

    @property
    def _pause_s(self) -> float:
        """How long it takes until a call comes: after another, or after those of a lot were answered.

        Callers that call again as soon as they are answered come all together, but only once their answers
        have travelled: a lot that didn't wait as long would leave them to the next, and so for ever.
        """
        return max(self._gap_s, self._return_s)


def _smoothed(mean: float, newest: float) -> float:
    return mean + _WEIGHT * (newest - mean) if mean else newest


def _mean_cost(manifest: Manifest) -> float:
    """What a call costs by the function's examples, until calls have come; without any, 1."""
    costs = [manifest.cost.of(example) for example in manifest.examples]
    return sum(costs) / len(costs) if costs else 1.0
