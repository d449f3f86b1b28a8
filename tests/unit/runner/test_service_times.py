from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runner.service_times import GENERATION, ServiceTime
from headrace.histograms import ACCURACY, cost_bucket


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_service_time_stays_within_what_was_seen(seen: list[float]) -> None:
    service = ServiceTime()
    assert service.mean == 0.0
    for seconds in seen:
        service.observe(seconds)
    assert min(seen) <= service.mean * (1 + 1e-9)
    assert service.mean <= max(seen) * (1 + 1e-9)


def test_a_service_time_follows_a_change() -> None:
    service = ServiceTime()
    service.observe(1.0)
    assert service.mean == 1.0  # the first counts whole
    for _ in range(50):
        service.observe(3.0)
    assert service.mean == pytest.approx(3.0, abs=0.02)


@given(st.lists(st.floats(0, 1e6)))
def test_the_median_is_of_the_last_executions_if_there_are_some(seen: list[float]) -> None:
    service = ServiceTime()
    for number, seconds in enumerate(seen, start=1):
        service.observe(seconds)
        assert service.median == (
            statistics.median_high(seen[max(0, number - 101) : number]) if number >= 5 else 0
        )


def test_the_median_forgets() -> None:
    service = ServiceTime()
    for seconds in [9.0] * 200 + [1.0] * 50:
        service.observe(seconds)
    assert service.median == 9.0
    service.observe(1.0)
    assert service.median == 1.0


def test_the_median_is_not_moved_by_a_few_that_are_slow() -> None:
    service = ServiceTime()
    for seconds in [60.0, 1.0, 1.2, 1.1, 50.0]:
        service.observe(seconds)
    assert service.median == 1.2


@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=3 * GENERATION))
def test_the_95th_percentile_is_of_the_last_hundreds_within_its_accuracy(seen: list[float]) -> None:
    service = ServiceTime()
    assert service.p95 == 0.0
    for seconds in seen:
        service.observe(seconds)
    full = (len(seen) - 1) // GENERATION
    window = sorted(seen[max(0, full - 1) * GENERATION :])
    rank = math.ceil(0.95 * len(window))
    true = window[(rank if len(window) >= 20 else max(1, len(window) - 1)) - 1]
    assert service.p95 == pytest.approx(true, rel=ACCURACY * (1 + 1e-9))


def test_a_slow_first_execution_is_not_the_95th_percentile_of_a_few() -> None:
    service = ServiceTime()
    service.observe(12.0, 4.0)
    for _ in range(4):
        service.observe(0.2, 4.0)
    assert service.p95 == service.by_cost[4].p95 == pytest.approx(0.2, rel=ACCURACY)


@pytest.mark.parametrize("number", [1, 5, 19, 20, 600])
def test_the_95th_percentile_of_what_always_takes_as_long_is_not_over_that(number: int) -> None:
    service = ServiceTime()
    for _ in range(number):
        service.observe(9.6)
    assert 9.6 * (1 - ACCURACY) <= service.p95 <= 9.6


def test_the_95th_percentile_forgets() -> None:
    service = ServiceTime()
    for seconds in [9.0] * 1000 + [1.0] * 2 * GENERATION:
        service.observe(seconds)
    assert service.p95 == pytest.approx(1.0, rel=ACCURACY)
    for _ in range(2 * GENERATION):
        service.observe(1.15)
    assert service.p95 == pytest.approx(1.15, rel=ACCURACY)


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(0.1, 1e6)), min_size=1, max_size=40))
def test_each_bucket_of_cost_has_times_of_its_own(seen: list[tuple[float, float]]) -> None:
    service = ServiceTime()
    alone: dict[int, ServiceTime] = {}
    for seconds, cost in seen:
        service.observe(seconds, cost)
        alone.setdefault(cost_bucket(cost), ServiceTime()).observe(seconds)
    assert service.by_cost.keys() == alone.keys()
    for bucket, times in alone.items():
        assert (service.by_cost[bucket].mean, service.by_cost[bucket].p95) == (times.mean, times.p95)


def test_inputs_without_a_cost_are_in_no_bucket() -> None:
    service = ServiceTime()
    service.observe(1.0)
    assert (service.by_cost, service.per_cost, service.expected(0.0), service.expected(8.0)) == (
        {},
        0,
        1.0,
        1.0,
    )


def test_an_unusual_cost_is_expected_in_proportion_and_a_known_one_by_its_own_times() -> None:
    service = ServiceTime()
    assert service.expected(4.0) == 0.0
    for _ in range(5):
        service.observe(0.5, 10.0)
    assert service.per_cost == pytest.approx(0.05)
    assert service.expected(10.0) == service.expected(12.0) == pytest.approx(0.5)
    assert service.expected(100.0) == pytest.approx(5.0)
    assert service.expected() == pytest.approx(0.5)
