"""One function on one runner, as this gateway knows it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.capacity import Capacity
from headrace.histograms import cost_bucket
from headrace.link.frames import Pong, Refused, Result

if TYPE_CHECKING:
    from headrace.gateway.runners import RunnerLink

_TRY_AFTER_S: Final = 10.0
_FULL_S: Final = 0.2  # so long a runner that has refused a call for want of room isn't asked again


class Serving:
    """One function on one runner: what admission weighs.

    `load` is what the runner last reported, corrected by what this gateway has sent and got back since;
    `mean_s` is how long one execution takes there, and `cost_s` how long one for a cost of 1, both 0 while
    nobody knows. `capacity` is what the runner said last of all that. `degraded_at` is since when it can't be
    run there, as this gateway has seen.
    """

    __slots__ = (
        "_full_until",
        "_known_at",
        "capacity",
        "cost_s",
        "degraded",
        "degraded_at",
        "interface",
        "link",
        "load",
        "mean_s",
        "slots",
    )

    def __init__(self, link: RunnerLink, interface: str, slots: int, degraded: str) -> None:
        self.link = link
        self.interface = interface
        self.slots = max(1, slots)
        self.degraded = degraded
        self.degraded_at = time.monotonic()
        self.load = 0
        self.mean_s = 0.0
        self.cost_s = 0.0
        self.capacity: Capacity | None = None
        self._full_until = self._known_at = float("-inf")

    @property
    def is_full(self) -> bool:
        """Whether the runner has said so just now; its reports, and so the load, may be a second old."""
        return time.monotonic() < self._full_until

    @property
    def first_slots(self) -> int:
        """This gateway's part of the slots: what it sends there while nothing has ended there yet."""
        return -(-self.slots // self.link.gateways)

    @property
    def broken_s(self) -> float:
        """How long the runner hasn't been able to run it, as far as it has said so."""
        return time.monotonic() - self.degraded_at if self.degraded else 0.0

    def expected_s(self, cost: float) -> float:
        """How long half of the executions take at most, for inputs of about that cost; 0: nobody knows.

        The runner tells the median of all. For an input with a cost it is taken in proportion to the means.
        """
        capacity = self.capacity
        if capacity is None:
            return 0.0
        if not (cost and capacity.cost_s and capacity.mean_s):
            return capacity.p50_s
        bucket = cost_bucket(cost)
        mean_s = next((one.mean_s for one in capacity.by_cost if one.cost == bucket), capacity.cost_s * cost)
        return capacity.p50_s * mean_s / capacity.mean_s

    @property
    def is_to_be_tried(self) -> bool:
        """Whether nothing has been executed there for ten seconds, as far as is known.

        Then a call is done that isn't likely to end in time: else nobody would learn that executions have
        become shorter.
        """
        return time.monotonic() - self._known_at >= _TRY_AFTER_S

    def may_try(self) -> bool:
        """Whether to send a call that isn't likely to end in time; only one is, then it is known."""
        if not self.is_to_be_tried:
            return False
        self._known_at = time.monotonic()
        return True

    def told(self, state: Pong, function: str) -> None:
        """Take what the runner says of itself."""
        self.load = state.loads.get(function, self.load)
        degraded = state.degraded.get(function, "")
        if degraded and not self.degraded:
            self.degraded_at = time.monotonic()
        self.degraded = degraded
        self.mean_s = state.means.get(function, self.mean_s)
        capacity = state.capacity.get(function)
        if capacity is not None:
            if self.capacity is None or capacity.mean_s != self.capacity.mean_s:
                self._known_at = time.monotonic()
            self.capacity = capacity
            if capacity.load_s:
                self.link.loads(function, capacity.load_s)
            self.cost_s = capacity.cost_s
            self.slots = max(1, capacity.slots)

    def refused(self, refusal: Refused) -> None:
        """Take that it refused a call."""
        if refusal.reason == "full":
            self._full_until = time.monotonic() + min(refusal.retry_after_s, _FULL_S)

    def executed(self, result: Result) -> None:
        """Take what an answer says of the runner's speed, and that a slot has become free."""
        self._full_until = 0.0
        if result.mean_s:
            self.mean_s, self.cost_s = result.mean_s, result.cost_s
