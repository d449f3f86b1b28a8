"""How long a call may take, and when one that is refused should come back."""

from __future__ import annotations

import math
from typing import NamedTuple

from headrace.domain import Budget


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


def retry_after(seconds: float) -> int:
    """`Retry-After` for room expected in so many seconds: whole seconds, 1 to 600."""
    return math.ceil(min(600, max(1, seconds)))
