from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.admission import Span, most_room, retry_after, span
from headrace.domain import Budget

SECONDS = st.floats(0.001, 1e6)


@given(
    sync=SECONDS,
    queue=SECONDS,
    hard=SECONDS,
    margin=SECONDS,
    wait=st.none() | st.floats(0, 1e6),
    deadline=st.none() | SECONDS,
    max_hold=SECONDS,
)
def test_a_span_keeps_every_bound_and_gives_no_less(
    sync: float,
    queue: float,
    hard: float,
    margin: float,
    wait: float | None,
    deadline: float | None,
    max_hold: float,
) -> None:
    budget = Budget(sync=sync, queue=queue, hard=hard, margin=margin)
    found = span(budget, wait=wait, deadline=deadline, max_hold=max_hold)
    bounds = [budget.total] + ([] if deadline is None else [deadline])
    assert found.total == min(bounds)
    assert found.hold == min([*bounds, sync, max_hold] + ([] if wait is None else [wait]))
    assert 0 <= found.hold <= found.total


@pytest.mark.parametrize(
    ("wait", "deadline", "expected"),
    [
        (None, None, Span(hold=10, total=105)),
        (3, None, Span(hold=3, total=105)),
        (0, None, Span(hold=0, total=105)),
        (99, None, Span(hold=10, total=105)),  # a preference never lengthens
        (None, 2.5, Span(hold=2.5, total=2.5)),
        (None, 1000, Span(hold=10, total=105)),
        (1, 2.5, Span(hold=1, total=2.5)),
    ],
)
def test_spans_of_the_default_budget(wait: float | None, deadline: float | None, expected: Span) -> None:
    assert span(Budget(), wait=wait, deadline=deadline, max_hold=55) == expected


def test_the_gateways_cap_holds() -> None:
    assert span(Budget(sync=500, queue=1000), wait=None, deadline=None, max_hold=55).hold == 55


@dataclass(eq=False)
class Runner:
    load: int
    slots: int


@given(st.lists(st.builds(Runner, load=st.integers(0, 1000), slots=st.integers(1, 64))))
def test_the_runner_with_the_most_room_for_its_size_is_taken(runners: list[Runner]) -> None:
    best = most_room(iter(runners))
    if not runners:
        assert best is None
        return
    assert best is not None
    lowest = min(runner.load / runner.slots for runner in runners)
    assert best is next(runner for runner in runners if runner.load / runner.slots == lowest)


def test_a_larger_runner_takes_more() -> None:
    small, large = Runner(0, 1), Runner(0, 4)
    for _ in range(10):
        best = most_room([small, large])
        assert best is not None
        best.load += 1
    assert (small.load, large.load) == (2, 8)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_retry_after_is_whole_and_bounded_and_never_too_early(seconds: float) -> None:
    found = retry_after(seconds)
    assert type(found) is int
    assert 1 <= found <= 600
    if 0 < seconds <= 600:
        assert seconds <= found < seconds + 1 or found == 1
    assert retry_after(seconds + 1) >= found


@pytest.mark.parametrize(
    ("seconds", "whole"),
    [
        (0, 1),
        (0.2, 1),
        (1, 1),
        (1.0001, 2),
        (599.5, 600),
        (601, 600),
        (-5, 1),
        (math.inf, 600),
        (math.nan, 1),
    ],
)
def test_retry_after(seconds: float, whole: int) -> None:
    assert retry_after(seconds) == whole
