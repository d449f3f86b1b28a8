"""Whether a call is taken, by whom, and how long its connection may be held. No I/O, no clock.

So far every call is synchronous; a call without room is refused.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

from headrace.domain import Budget


class RunnerLoad(Protocol):
    """What admission sees of a runner that serves the function."""

    @property
    def load(self) -> int:
        """Calls that run or wait there, as far as is known."""
        ...

    @property
    def slots(self) -> int:
        """Calls that may run there at once."""
        ...

    @property
    def mean_s(self) -> float:
        """How long one execution takes there, in seconds; 0 where that isn't known."""
        ...


R = TypeVar("R", bound=RunnerLoad)

_AS_SOON: Final = 1.25
_NOISE_S: Final = 0.005


class Span(NamedTuple):
    """How long a call may take, in seconds from its acceptance.

    Args:
        hold: until the connection is answered in any case.
        total: until the deadline, after which a result is worthless.
    """

    hold: float
    total: float


def span(
    budget: Budget, *, wait: float | None, deadline: float | None, max_hold: float, streams: bool = False
) -> Span:
    """The time a call gets.

    Args:
        budget: the function's.
        wait: what the caller prefers to wait at most (`Prefer: wait`, RFC 7240); None says nothing.
        deadline: the caller's own total budget; it only ever shortens.
        max_hold: the gateway's cap.
        streams: its answer is written meanwhile, so that a silent connection isn't what bounds it.
    """
    total = budget.total if deadline is None else min(budget.total, deadline)
    hold = total if streams else min(budget.sync, max_hold, total)
    return Span(hold if wait is None else min(hold, wait), total)


def finish_s(load: int, slots: int, mean_s: float) -> float:
    """Seconds until a call that came now should end: its own execution, and before it the wait for a slot."""
    ahead = load + 1 - slots
    return mean_s if ahead <= 0 else mean_s + ahead / slots * mean_s


def most_room(runners: Iterable[R]) -> R | None:
    """The runner where a call should end first, by the speed that was measured there.

    Means vary without a reason, so among those that are about as soon as the first, the one with the least
    load for its size is taken, and any of equals. A runner whose speed isn't known counts as fast as the
    others are on average.
    """
    candidates = list(runners)
    if not candidates:
        return None
    means = [mean_s for runner in candidates if (mean_s := runner.mean_s)]
    unknown_s = sum(means) / len(means) if means else 1.0
    ends = [finish_s(runner.load, runner.slots, runner.mean_s or unknown_s) for runner in candidates]
    latest = min(ends) * _AS_SOON + _NOISE_S
    best: list[R] = []
    lowest = math.inf
    for runner, end in zip(candidates, ends, strict=True):
        if end <= latest and (share := runner.load / runner.slots) <= lowest:
            if share < lowest:
                lowest, best = share, []
            best.append(runner)
    return best[0] if len(best) == 1 else random.choice(best)  # noqa: S311 - spreads load, guards nothing


def retry_after(seconds: float) -> int:
    """`Retry-After` for room expected in so many seconds: whole seconds, 1 to 600."""
    return math.ceil(min(600, max(1, seconds)))
