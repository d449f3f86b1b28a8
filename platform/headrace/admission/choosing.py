"""By which runner a call is done."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Final, Protocol, TypeVar


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
