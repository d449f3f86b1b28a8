"""By which runner a call is done."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
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
        """How long one execution takes there, in seconds; 0 where that isn't known: none has ended."""
        ...


class Choice(RunnerLoad, Protocol):
    """What is seen of one among many."""

    @property
    def first_slots(self) -> int:
        """This gateway's part of the slots: what it sends there before anything has ended there."""
        ...


L = TypeVar("L", bound=RunnerLoad)
R = TypeVar("R", bound=Choice)

_AS_SOON: Final = 1.25
_NOISE_S: Final = 0.005


def finish_s(load: int, slots: int, mean_s: float) -> float:
    """Seconds until a call that came now should end: its own execution, and before it the wait for a slot."""
    ahead = load + 1 - slots
    return mean_s if ahead <= 0 else mean_s + ahead / slots * mean_s


def choose(
    runners: Sequence[R], *, others_full: bool = False, draw: Callable[[], float] = random.random
) -> R | None:
    """Where a call should end soon, as far as one gateway knows that is not alone.

    Of more than two it is the better one of two that are drawn by chance, by what each gets done in a second:
    loads are up to a second old, and whoever looks best is so for every gateway (Mitzenmacher, "How Useful Is
    Old Information?", IEEE TPDS 11(1), 2000). Where both are full and another one isn't, all are looked at.

    A runner where nothing has ended yet looks free to all of them at once. So each sends it no more than its
    part of the slots, and where the others are full no more than there are slots.

    Args:
        runners: those that may be asked.
        others_full: others have been asked, and had no room.
        draw: a number from 0 to below 1.

    Returns:
        None where there is nobody to ask, or nobody who should be: those that are there are new, and as many
        calls are on their way to them as they have slots.
    """
    for runner in runners:
        if not runner.mean_s and runner.load >= runner.first_slots:
            runners = _opened(runners, others_full=others_full)
            break
    count = len(runners)
    if count < 2:
        return runners[0] if count else None
    # Of each call: nothing is built here that isn't needed.
    means = [runner.mean_s for runner in runners]
    unknown_s = _unknown_s(runners) if 0 in means else 0.0
    if count == 2:
        first, second = runners if draw() < 0.5 else reversed(runners)
    else:
        first, second = _two(runners, unknown_s, draw)
    best = _sooner(first, second, unknown_s)
    if count > 2 and best.load >= best.slots and any(one.load < one.slots for one in runners):
        return most_room(runners)
    return best


def _sooner(first: R, second: R, unknown_s: float) -> R:
    """The better one of two, as `most_room` would say; of equals the first."""
    end = finish_s(first.load, first.slots, first.mean_s or unknown_s)
    other = finish_s(second.load, second.slots, second.mean_s or unknown_s)
    if end > other * _AS_SOON + _NOISE_S:
        return second
    if other > end * _AS_SOON + _NOISE_S:
        return first
    return second if second.load / second.slots < first.load / first.slots else first


def _opened(runners: Sequence[R], *, others_full: bool) -> Sequence[R]:
    """Those that may get another call though some of them are new, as `choose` says."""
    opened = [one for one in runners if one.mean_s or one.load < one.first_slots]
    if opened or not others_full:
        return opened or runners
    return [one for one in runners if one.load < one.slots]


def _two(runners: Sequence[R], unknown_s: float, draw: Callable[[], float]) -> tuple[R, R]:
    """Two of several, drawn by what each gets done in a second."""
    upto = list(accumulate([one.slots / (one.mean_s or unknown_s) for one in runners]))
    last = len(upto) - 1
    first = min(last, bisect_right(upto, draw() * upto[last]))
    before = upto[first - 1] if first else 0.0
    its_own = upto[first] - before
    point = draw() * (upto[last] - its_own)  # the first one is as if cut out
    second = bisect_right(upto, point if point < before else point + its_own)
    if second >= len(upto) or second == first:  # sums of floating point aren't exact
        second = first - 1 if first else 1
    return runners[first], runners[second]


def _unknown_s(runners: Sequence[RunnerLoad]) -> float:
    """What an execution is taken for where it isn't known: what it takes elsewhere."""
    means = [mean_s for runner in runners if (mean_s := runner.mean_s)]
    return sum(means) / len(means) if means else 1.0


def most_room(runners: Iterable[L]) -> L | None:
    """The runner where a call should end first, by the speed that was measured there.

    Means vary without a reason, so among those that are about as soon as the first, the one with the least
    load for its size is taken, and any of equals. A runner whose speed isn't known counts as fast as the
    others are on average.
    """
    candidates = list(runners)
    if not candidates:
        return None
    unknown_s = _unknown_s(candidates)
    ends = [finish_s(runner.load, runner.slots, runner.mean_s or unknown_s) for runner in candidates]
    latest = min(ends) * _AS_SOON + _NOISE_S
    best: list[L] = []
    lowest = math.inf
    for runner, end in zip(candidates, ends, strict=True):
        if end <= latest and (share := runner.load / runner.slots) <= lowest:
            if share < lowest:
                lowest, best = share, []
            best.append(runner)
    return best[0] if len(best) == 1 else random.choice(best)  # noqa: S311 - spreads load, guards nothing
