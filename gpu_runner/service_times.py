"""How long executions take: the figures that predictions are made of.

The mean is exponentially weighted, so that it follows a change within some ten executions. The median is of
the last 101, exactly. The 95th percentile is read from two histograms of `headrace.histograms`, the one that
fills and the full one before it: within 8.7% of that of the last 256 to 511 executions, in memory that
doesn't grow with them. Of fewer than 20 executions the slowest would be it, which mostly is the first: it is
left out. Each bucket of cost has a mean and a 95th percentile of its own, as cost is what times differ by.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.histograms import Histogram, cost_bucket, merged

_WEIGHT: Final = 0.1  # of the newest execution in the running mean
_RECENT: Final = 101  # executions that the median is of
_FEW: Final = 5  # fewer say nothing: the first may have been slow, and others shall not fail for that
_ENOUGH: Final = 20  # of fewer, the slowest is the 95th percentile
GENERATION: Final = 256
"""After so many executions a histogram is full, and the one before it is forgotten."""


class Spread:
    """The mean and the 95th percentile of some executions, in seconds."""

    __slots__ = ("_before", "_filling", "_most", "_most_before", "mean")

    def __init__(self) -> None:
        self.mean = 0.0
        """The running mean, exponentially weighted: 0 until something has run."""
        self._filling = Histogram()
        self._before = Histogram()
        self._most = self._most_before = 0.0

    def observe(self, seconds: float) -> None:
        """Count one execution."""
        self.mean = seconds if self.mean == 0.0 else self.mean + _WEIGHT * (seconds - self.mean)
        if self._filling.number >= GENERATION:
            self._before, self._filling = self._filling, Histogram()
            self._most_before, self._most = self._most, 0.0
        self._filling.observe(seconds)
        self._most = max(self._most, seconds)

    @property
    def known(self) -> int:
        """How many executions it tells of."""
        return self._filling.number + self._before.number

    @property
    def p95(self) -> float:
        """The 95th percentile, the slowest left out where it would be that; 0 until something has run."""
        known = self.known
        share = 0.95 if known >= _ENOUGH else (known - 1.5) / max(known, 1)  # that of the last but one
        # The middle of a bucket may be more than there was: what steadily takes 9.6 s would be over 10 s.
        most = max(self._most, self._most_before)
        return min(merged((self._before, self._filling)).quantile(share), most)


class ServiceTime:
    """The execution times of one function, in seconds."""

    def __init__(self) -> None:
        self.by_cost: dict[int, Spread] = {}
        """Of inputs that have a cost, by the bucket of it."""
        self._all = Spread()
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._median: float | None = 0.0
        self._priced_s = self._cost = 0.0

    def observe(self, seconds: float, cost: float = 0.0) -> None:
        """Count one execution, of an input of that cost; 0: it has none."""
        self._all.observe(seconds)
        self._recent.append(seconds)
        if len(self._recent) >= _FEW:
            self._median = None
        if cost > 0:
            self._observe_cost(seconds, cost)

    def _observe_cost(self, seconds: float, cost: float) -> None:
        if self._cost:
            self._priced_s += _WEIGHT * (seconds - self._priced_s)
            self._cost += _WEIGHT * (cost - self._cost)
        else:
            self._priced_s, self._cost = seconds, cost
        bucket = cost_bucket(cost)
        spread = self.by_cost.get(bucket)
        if spread is None:
            spread = self.by_cost[bucket] = Spread()
        spread.observe(seconds)

    @property
    def mean(self) -> float:
        """The running mean, exponentially weighted: 0 until something has run."""
        return self._all.mean

    @property
    def p95(self) -> float:
        """The 95th percentile of the last executions, within 8.7%; 0 until something has run."""
        return self._all.p95

    @property
    def known(self) -> int:
        """How many of the last executions that is of."""
        return self._all.known

    @property
    def median(self) -> float:
        """Of the last executions; 0 until there are some."""
        if self._median is None:
            self._median = sorted(self._recent)[len(self._recent) // 2]
        return self._median

    @property
    def mean_cost(self) -> float:
        """The running mean of the costs, weighted alike; 0 until something with a cost has run."""
        return self._cost

    @property
    def per_cost(self) -> float:
        """Seconds for a cost of 1, by the running means of both; 0 until something with a cost has run."""
        return self._priced_s / self._cost if self._cost else 0.0

    def expected(self, cost: float = 0.0) -> float:
        """How long an input of that cost should take; 0 while nothing is known.

        By what inputs of about that cost took, once there are some; else in proportion to the cost.
        """
        if cost > 0 and self._cost:
            spread = self.by_cost.get(cost_bucket(cost))
            if spread is not None and spread.known >= _FEW:
                return spread.mean
            return self.per_cost * cost
        return self.mean
