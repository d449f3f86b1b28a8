"""Counters and histograms of our own say what those of `prometheus_client` say."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from headrace.telemetry.tallies import Distributions, Tallies

BOUNDS = (0.001, 0.25, 1, 30)


def lines(registry: CollectorRegistry) -> list[str]:
    """All that is told, without the instants at which series were made: ours have none."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_a_histogram_tells_the_same() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = Distributions("test_seconds", "Seconds", ["function"], BOUNDS, ours)
    other = Histogram("test_seconds", "Seconds", ["function"], buckets=BOUNDS, registry=theirs)
    for function, values in {"idle": (), "busy": (0.0, 0.001, 0.0011, 0.25, 0.5, 30, 31, 4000)}.items():
        other.labels(function)
        kept = own.labels(function)
        for value in values:
            kept.observe(value)
            other.labels(function).observe(value)
    assert lines(ours) == lines(theirs)


def test_a_counter_tells_the_same() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = Tallies("test_ends", "Ends", ["function", "outcome"], ours)
    other = Counter("test_ends", "Ends", ["function", "outcome"], registry=theirs)
    assert lines(ours) == lines(theirs)
    for labels, count in {("one", "succeeded"): 3, ("one", "lost"): 1, ("two", "succeeded"): 0}.items():
        other.labels(*labels).inc(count)
        kept = own.labels(*labels)
        for _ in range(count):
            kept.add()
        assert own.labels(*labels) is kept
    assert lines(ours) == lines(theirs)
