from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.admission import Span, finish_s, most_room, retry_after, span
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
    mean_s: float = 0.0

    @property
    def has_room(self) -> bool:
        return self.load < self.slots

    def finish_s(self) -> float:
        return finish_s(self.load, self.slots, self.mean_s)


def some_runners(mean_s: st.SearchStrategy[float]) -> st.SearchStrategy[list[Runner]]:
    built = st.builds(Runner, load=st.integers(0, 1000), slots=st.integers(1, 64), mean_s=mean_s)
    return st.lists(built, min_size=1)


def test_nobody_is_chosen_of_nobody() -> None:
    assert most_room([]) is None


@given(some_runners(st.sampled_from([0.0, 0.3])))
def test_of_equally_fast_runners_the_one_with_the_most_room_for_its_size_is_taken(
    runners: list[Runner],
) -> None:
    best = most_room(iter(runners))
    assert best is not None
    if any(runner.has_room for runner in runners):  # whoever's speed isn't known counts as equally fast
        assert best.load / best.slots == min(runner.load / runner.slots for runner in runners)


@given(some_runners(st.floats(1e-6, 1e4)))
def test_no_call_goes_where_it_would_end_much_later_than_elsewhere(runners: list[Runner]) -> None:
    best = most_room(runners)
    assert best is not None
    soonest = min(runner.finish_s() for runner in runners)
    equally_soon = [runner for runner in runners if runner.finish_s() <= soonest * 1.25 + 0.005]
    assert best in equally_soon
    assert all(best.load / best.slots <= runner.load / runner.slots for runner in equally_soon)


@given(some_runners(st.floats(1e-6, 1e4)))
def test_a_full_runner_is_asked_before_one_with_a_free_slot_only_where_the_call_would_still_end_sooner(
    runners: list[Runner],
) -> None:
    best = most_room(runners)
    assert best is not None
    if not best.has_room:
        assert all(best.finish_s() < runner.finish_s() for runner in runners if runner.has_room)


@given(some_runners(st.sampled_from([0.0, 0.1, 0.2])))
def test_a_free_runner_as_fast_as_any_is_never_passed_over_for_a_full_one(runners: list[Runner]) -> None:
    fastest = Runner(0, 1, 0.1)
    best = most_room([*runners, fastest])
    assert best is not None
    assert best.has_room


def test_expected_ends() -> None:
    assert finish_s(0, 1, 2.0) == 2.0
    assert finish_s(3, 4, 2.0) == 2.0  # the last free slot
    assert finish_s(4, 4, 2.0) == 2.5  # one of four ends each half second
    assert finish_s(3, 1, 2.0) == 8.0


def test_calls_are_shared_by_measured_speed() -> None:
    fast, slow = Runner(0, 1, 0.1), Runner(0, 1, 0.4)
    for _ in range(10):
        best = most_room([slow, fast])
        assert best is not None
        best.load += 1
    assert (fast.load, slow.load) == (8, 2)


def test_equal_runners_are_taken_in_no_order() -> None:
    runners = [Runner(0, 1, 0.1), Runner(0, 1, 0.11), Runner(1, 1, 0.1)]
    assert {runners.index(best) for _ in range(200) if (best := most_room(runners))} == {0, 1}


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
