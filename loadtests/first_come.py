"""Calls that come by chance, take times of several distributions, and are served as they come. Pure."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, get_args

Distribution = Literal["erlang", "exponential", "lognormal"]
DISTRIBUTIONS: Final[tuple[Distribution, ...]] = get_args(Distribution)
"""By how much the times of executions differ: standard deviations of 0.25, 1 and 1.31 times the mean."""

_STAGES: Final = 16
_SIGMA: Final = 1.0


class Arrival(NamedTuple):
    """A call.

    Args:
        at: when it comes first, in seconds from the beginning.
        seconds: how long its execution takes.
    """

    at: float
    seconds: float


def length(distribution: Distribution, mean_s: float, chance: random.Random) -> float:
    """How long one execution takes, in seconds."""
    match distribution:
        case "erlang":
            return chance.gammavariate(_STAGES, mean_s / _STAGES)
        case "exponential":
            return chance.expovariate(1 / mean_s)
        case "lognormal":
            return chance.lognormvariate(math.log(mean_s) - _SIGMA**2 / 2, _SIGMA)


def arrivals(
    distribution: Distribution,
    mean_s: float,
    phases: Sequence[tuple[float, float]],
    chance: random.Random,
) -> Iterator[Arrival]:
    """Calls that come independently of each other, and of what becomes of them (a Poisson process).

    Args:
        distribution: of how long they take.
        mean_s: how long, on average.
        phases: calls a second, and until when; one after the other. The last may have no end.
        chance: where all of it is drawn from.
    """
    at = 0.0
    for rate, until in phases:
        while (after := at + chance.expovariate(rate)) < until:
            at = after
            yield Arrival(at, length(distribution, mean_s, chance))
        at = until  # exponential gaps have no memory


def first_come(calls: Sequence[Arrival], servers: int) -> list[float]:
    """How long each waits where so many serve them in the order in which they come, in seconds."""
    free_at = [0.0] * servers
    waits: list[float] = []
    for call in calls:
        start = max(call.at, free_at[0])
        heapq.heapreplace(free_at, start + call.seconds)
        waits.append(start - call.at)
    return waits


def busiest(instants: Sequence[float]) -> int:
    """How many of these, in seconds, fall within one second, whenever that begins."""
    most, first = 0, 0
    ordered = sorted(instants)
    for last, instant in enumerate(ordered):
        while instant - ordered[first] >= 1:
            first += 1
        most = max(most, last - first + 1)
    return most


def percentile(values: Sequence[float], share: float) -> float:
    """What that share of the values doesn't exceed; NaN where there is none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def mean(values: Sequence[float]) -> float:
    """NaN where there is none."""
    return math.fsum(values) / len(values) if values else math.nan
