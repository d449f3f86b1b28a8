"""Histograms that merge, and the buckets of cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.histograms import (
    ACCURACY,
    HIGHEST,
    LARGEST_COST,
    LOWEST,
    Histogram,
    cost_bucket,
    lower_bound,
    merged,
    middle,
)

# Within the bounds of the first and the last bucket.
VALUES = st.floats(2.0**-20, 2.0**31)
MANY = st.lists(VALUES, max_size=60)


def made(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    return histogram


def state(histogram: Histogram) -> tuple[dict[int, int], int]:
    return histogram.counts, histogram.number


@given(MANY, MANY, MANY)
def test_merging_is_associative_and_the_order_does_not_matter(
    one: list[float], two: list[float], three: list[float]
) -> None:
    left = merged((merged((made(one), made(two))), made(three)))
    right = merged((made(three), merged((made(two), made(one)))))
    assert state(left) == state(right) == state(made(one + two + three))
    assert left.total == pytest.approx(math.fsum(one + two + three))


@given(st.lists(VALUES, min_size=1, max_size=60), st.floats(0, 1))
def test_a_quantile_is_within_the_accuracy(values: list[float], share: float) -> None:
    true = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert made(values).quantile(share) == pytest.approx(true, rel=ACCURACY * (1 + 1e-9))


@given(st.integers(LOWEST, HIGHEST))
def test_a_bucket_holds_its_lower_bound_and_what_stands_for_it(at: int) -> None:
    assert made([middle(at)]).counts == {at: 1}
    if at % 4 == 0:  # a power of two: the other bounds are no floats
        assert made([lower_bound(at)]).counts == {at: 1}


@pytest.mark.parametrize(
    ("value", "at"),
    [(0.0, LOWEST), (-1.0, LOWEST), (1e-12, LOWEST), (1.0, 0), (0.5, -4), (1e300, HIGHEST)],
)
def test_what_is_beyond_the_bounds_counts_in_the_first_or_the_last(value: float, at: int) -> None:
    assert made([value]).counts == {at: 1}


def test_the_bounds_are_those_under_which_counts_are_stored() -> None:
    """A change here makes nonsense of what is in databases."""
    assert (LOWEST, HIGHEST) == (-80, 127)
    assert [made([value]).counts for value in (0.001, 0.25, 3.0, 60.0)] == [
        {-40: 1},
        {-8: 1},
        {6: 1},
        {23: 1},
    ]


def test_nothing_observed_is_zero() -> None:
    assert (Histogram().mean, Histogram().quantile(0.95)) == (0.0, 0.0)


@given(st.floats(min_value=1e-300, max_value=LARGEST_COST))
def test_a_cost_is_in_the_least_power_of_two_that_it_does_not_exceed(cost: float) -> None:
    bucket = cost_bucket(cost)
    assert bucket == 2 ** max(0, math.ceil(math.log2(bucket)))
    assert cost <= bucket
    assert bucket == 1 or cost > bucket / 2


@pytest.mark.parametrize(
    ("cost", "bucket"),
    [(0, 0), (-1, 0), (math.nan, 0), (1, 1), (1.5, 2), (2, 2), (3, 4), (64, 64), (1e18, LARGEST_COST)],
)
def test_costs_at_the_edges(cost: float, bucket: int) -> None:
    assert cost_bucket(cost) == bucket
