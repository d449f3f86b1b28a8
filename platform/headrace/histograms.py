"""Histograms that merge: fixed, log-spaced buckets, so that counts of anybody's can be added to anybody's.

Bucket k holds what is at least 2^(k/4) and under 2^((k+1)/4), of seconds as of anything else; k goes from -80
(a microsecond) to 127, and what is beyond counts in the first or the last. A quantile read from it is within
8.7% of the true one, as each bucket ends 19% above its beginning: that of DDSketch (Masson, Rim and Lee,
PVLDB 12(12), 2019), whose buckets these are, with a ratio of the fourth root of two. The bounds never change:
what was stored under them would mean something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from math import floor, log2
from typing import Final

PER_OCTAVE: Final = 4
LOWEST: Final = -80
HIGHEST: Final = 127
ACCURACY: Final = (2 ** (1 / PER_OCTAVE) - 1) / (2 ** (1 / PER_OCTAVE) + 1)
"""How far a quantile may be from the true one, relative to it."""

LARGEST_COST: Final = 2**40
"""The highest bucket of costs; dearer inputs are counted there."""

_LEAST: Final = 2.0 ** (LOWEST / PER_OCTAVE)
_MOST: Final = 2.0 ** (HIGHEST / PER_OCTAVE)


class Histogram:
    """How often which values were observed, in constant memory.

    Args:
        counts: by bucket.
        number: of all observations.
        total: of their values.
    """

    __slots__ = ("counts", "number", "total")

    def __init__(self, counts: Mapping[int, int] | None = None, number: int = 0, total: float = 0.0) -> None:
        self.counts: dict[int, int] = dict(counts or {})
        self.number = number
        self.total = total

    def observe(self, value: float) -> None:
        """Count a value; what isn't positive is in the first bucket."""
        # By hand, not by `bucket`: this is on the path of each call.
        if _LEAST < value < _MOST:
            at = floor(PER_OCTAVE * log2(value))
        else:
            at = HIGHEST if value >= _MOST else LOWEST
        counts = self.counts
        counts[at] = counts.get(at, 0) + 1
        self.number += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Count all that the other one has counted."""
        for at, count in other.counts.items():
            self.counts[at] = self.counts.get(at, 0) + count
        self.number += other.number
        self.total += other.total

    @property
    def mean(self) -> float:
        """Of all values, exactly; 0 where there are none."""
        return self.total / self.number if self.number else 0.0

    def quantile(self, share: float) -> float:
        """The value that this share of all don't exceed, within `ACCURACY`; 0 where there are none."""
        wanted = max(1, math.ceil(share * self.number))
        for at in sorted(self.counts):
            wanted -= self.counts[at]
            if wanted <= 0:
                return middle(at)
        return 0.0


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """One with all that these have counted."""
    made = Histogram()
    for one in histograms:
        made.add(one)
    return made


def lower_bound(at: int) -> float:
    """The least value of a bucket."""
    return 2.0 ** (at / PER_OCTAVE)


def middle(at: int) -> float:
    """What stands for all values of a bucket: its relative distance to both bounds is the same."""
    low, high = lower_bound(at), lower_bound(at + 1)
    return 2 * low * high / (low + high)


def cost_bucket(cost: float) -> int:
    """The bucket of an input's cost: the power of two that it doesn't exceed, from 1; 0 where it has none."""
    if not cost > 0:
        return 0
    if cost >= LARGEST_COST:
        return LARGEST_COST
    part, exponent = math.frexp(cost)
    return 1 << max(0, exponent - 1 if part == 0.5 else exponent)
