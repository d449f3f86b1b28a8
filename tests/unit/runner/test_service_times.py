from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runner.service_times import ServiceTime


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
