"""Whether a call is taken, by whom, and how long its connection may be held. Pure: no I/O, no clock.

So far every call is synchronous; a call without room is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar

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


R = TypeVar("R", bound=RunnerLoad)


class Span(NamedTuple):
    """How long a call may take, in seconds from its acceptance.

    Args:
        hold: until the connection is answered in any case.
        total: until the deadline, after which a result is worthless.
    """

    hold: float
    total: float


def span(budget: Budget, *, wait: float | None, deadline: float | None, max_hold: float) -> Span:
    """The time a call gets.

    Args:
        budget: the function's.
        wait: what the caller prefers to wait at most (`Prefer: wait`, RFC 7240); None says nothing.
        deadline: the caller's own total budget; it only ever shortens.
        max_hold: the gateway's cap.
    """
    total = budget.total if deadline is None else min(budget.total, deadline)
    hold = min(budget.sync, max_hold, total)
    return Span(hold if wait is None else min(hold, wait), total)


def most_room(runners: Iterable[R]) -> R | None:
    """The runner with the least load for its size; the first of equals."""
    best: R | None = None
    lowest = 0.0
    for runner in runners:
        load = runner.load / runner.slots
        if best is None or load < lowest:
            best, lowest = runner, load
    return best


def retry_after(seconds: float) -> int:
    """`Retry-After` for room expected in so many seconds: whole seconds, 1 to 600."""
    return math.ceil(min(600, max(1, seconds)))
