"""Counters and histograms for what is counted with each call, where `prometheus_client`'s own are too dear.

These take no lock and walk through no buckets, which is a fifth of the time. So each is written by one
thread, as a rule the event loop's; Prometheus' thread may read it meanwhile, and sees an observation whole or
not at all, but for the sum of its histogram.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class Tally:
    """How often something has happened."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        """It has happened once more."""
        self.count += 1


class Tallies(Collector):
    """A counter by labels; its arguments are as of `prometheus_client.Counter`."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name = name
        self._help = help_text
        self._labels = labels
        self._tallies: dict[tuple[str, ...], Tally] = {}
        registry.register(self)

    def labels(self, *values: str) -> Tally:
        """What is counted under these values: keep it, where each call is counted."""
        tally = self._tallies.get(values)
        if tally is None:
            tally = self._tallies[values] = Tally()
        return tally

    def describe(self) -> Iterable[Metric]:
        """As of `Collector`: the name alone."""
        return [CounterMetricFamily(self._name, self._help, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """As of `Collector`."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, tally in list(self._tallies.items()):
            family.add_metric(values, tally.count)
        return [family]


class Buckets:
    """Observations of a value, by the bucket that it falls into.

    Args:
        bounds: of the buckets, each the largest value that belongs to it, ascending; what is larger than the
            last belongs to one more.
    """

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """Of all values."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulated(self) -> list[int]:
        """How many values have been up to each bound; the last one is of all."""
        return [*accumulate(self._counts[:])]


class Distributions(Collector):
    """A histogram by labels; its arguments are as of `prometheus_client.Histogram`."""

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._help = help_text
        self._labels = labels
        self._bounds = bounds
        self._names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._children: dict[tuple[str, ...], Buckets] = {}
        registry.register(self)

    def labels(self, *values: str) -> Buckets:
        """What is observed under these values: keep it, where each call is counted."""
        buckets = self._children.get(values)
        if buckets is None:
            buckets = self._children[values] = Buckets(self._bounds)
        return buckets

    def describe(self) -> Iterable[Metric]:
        """As of `Collector`: the name alone."""
        return [HistogramMetricFamily(self._name, self._help, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """As of `Collector`."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for values, buckets in list(self._children.items()):
            counts = zip(self._names, buckets.cumulated(), strict=True)
            family.add_metric(values, buckets=[*counts], sum_value=buckets.total)
        return [family]
