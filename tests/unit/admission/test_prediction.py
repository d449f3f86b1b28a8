from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runner.service_times import ServiceTime
from headrace.admission import Job, Snapshot, Span, Sync, Wish, decide, predict
from headrace.capacity import Capacity, CostTime
from headrace.domain import Budget

BUDGET = Budget(sync=10, soft=6, hard=30)


@dataclass(eq=False)
class Runner:
    load: int = 0
    slots: int = 1
    mean_s: float = 0.0
    capacity: Capacity | None = None
    is_full: bool = True


def measured(**told: float) -> Capacity:
    return Capacity(**{"slots": 1, "free": 1, "mean_s": 2.0, "p95_s": 3.0, "known": 100, **told})  # type: ignore[arg-type]


def test_nobody_can_be_predicted() -> None:
    assert predict([], BUDGET) is None


def test_while_nothing_is_known_the_budget_speaks_and_makes_no_call_a_job() -> None:
    found = predict([Runner()], BUDGET)
    assert found is not None
    assert (found.exec_s, found.exec_p95_s) == (3, 6)  # of the soft limit, which is less than `sync`
    assert (found.is_known, found.has_room, found.total_s) == (False, True, 0)
    assert isinstance(decide(Span(1, 100), Wish(), Snapshot(found, 0.25)), Sync)


@pytest.mark.parametrize(("known", "is_known"), [(0, False), (4, False), (5, True)])
def test_a_few_executions_say_nothing(known: int, is_known: bool) -> None:
    found = predict([Runner(mean_s=2, capacity=measured(known=known))], BUDGET)
    assert found is not None
    assert found.is_known == is_known
    assert found.total_s == (3 if is_known else 0)


@pytest.mark.parametrize("cost", [0.0, 3.0, 1000.0])
@pytest.mark.parametrize(("first_s", "others_s", "is_job"), [(12.0, 0.2, False), (12.0, 12.0, True)])
def test_one_slow_execution_makes_no_call_a_job(
    first_s: float, others_s: float, is_job: bool, cost: float
) -> None:
    """Neither of inputs without a cost, nor of that of the first one, nor of a much higher one."""
    times = ServiceTime()
    for number in range(19):
        times.observe(others_s if number else first_s, min(cost, 4.0))
        by_cost = tuple(CostTime(of, one.mean, one.p95, one.known) for of, one in times.by_cost.items())
        told = measured(
            mean_s=times.mean,
            p95_s=times.p95,
            known=times.known,
            cost_s=times.per_cost,
            by_cost=by_cost,  # type: ignore[arg-type]
        )
        found = predict([Runner(capacity=told)], BUDGET, cost)
        decision = decide(Span(10, 100), Wish(), Snapshot(found, 0.25))
        assert isinstance(decision, Job if is_job and times.known >= 5 else Sync)


def test_who_waits_waits_for_those_ahead() -> None:
    busy = measured(free=0, busy=1)
    waits = [predict([Runner(load, 1, 2.0, busy)], BUDGET) for load in range(4)]
    assert [one and one.wait_s for one in waits] == [0, 2, 4, 6]
    assert [one and one.has_room for one in waits] == [True, False, False, False]
    four = predict([Runner(7, 4, 2.0, measured(slots=4, free=0, busy=4))], BUDGET)
    assert four is not None
    assert four.wait_s == 2  # four before it, of which all four slots do one each


@pytest.mark.parametrize(("jobs", "wait_s"), [(0, 2), (1, 3), (4, 4), (1000, 4)])
def test_while_jobs_wait_every_other_start_is_one_of_them(jobs: int, wait_s: float) -> None:
    """Two calls, itself one of them, are to start before it may: and two jobs, if there are so many."""
    told = measured(slots=2, free=0, busy=2)
    found = predict([Runner(3, 2, 2.0, told)], BUDGET, jobs=jobs)
    assert found is not None
    assert found.wait_s == wait_s
    free = predict([Runner(1, 2, 2.0, measured(slots=2, free=1, busy=1))], BUDGET, jobs=jobs)
    assert free is not None
    assert (free.wait_s, free.has_room) == (0, True)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_more_jobs_never_shorten_a_wait(load: int, slots: int, jobs: int, more: int) -> None:
    waits = [predict([Runner(load, slots + 1, 1.0)], BUDGET, jobs=one) for one in (jobs, jobs + more)]
    assert waits[0] is not None
    assert waits[1] is not None
    assert waits[0].wait_s <= waits[1].wait_s <= 2 * waits[0].wait_s or waits[0].wait_s == waits[1].wait_s


def test_a_slot_that_is_kept_for_a_function_is_room_for_it_though_others_fill_the_rest() -> None:
    """Its own bound is one slot; another function's call runs in a second one, and so counts as load."""
    found = predict([Runner(1, 1, 2.0, measured(slots=1, free=1, busy=1))], BUDGET)
    assert found is not None
    assert (found.has_room, found.wait_s) == (True, 0)


def test_what_a_report_of_a_second_ago_says_is_no_reason_either() -> None:
    told = Runner(1, 1, 2.0, measured(free=0, busy=1), is_full=False)
    found = predict([told], BUDGET)
    assert found is not None
    assert (found.wait_s, found.has_room, found.knows_wait, found.total_s) == (2, False, False, 3)
    assert isinstance(decide(Span(4, 100), Wish(), Snapshot(found, 0.25)), Sync)
    told.is_full = True
    assert isinstance(decide(Span(4, 100), Wish(), Snapshot(predict([told], BUDGET), 0.25)), Job)


def test_a_wait_of_unknown_length_is_no_reason() -> None:
    found = predict([Runner(load=3)], BUDGET)
    assert found is not None
    assert (found.has_room, found.knows_wait, found.total_s) == (False, False, 0)
    assert isinstance(decide(Span(1, 100), Wish(), Snapshot(found, 0.25)), Sync)


@pytest.mark.parametrize("warmth", ["cold", "loading", "none"])
def test_loading_counts_where_the_models_are_not_there(warmth: str) -> None:
    told = Capacity(slots=1, free=1, mean_s=2, p95_s=3, known=9, warmth=warmth, load_s=4)  # type: ignore[arg-type]
    found = predict([Runner(mean_s=2, capacity=told)], BUDGET)
    assert found is not None
    assert (found.load_s, found.is_cold, found.total_s) == (4, True, 7)


def test_the_runner_where_it_ends_first_is_told_of() -> None:
    slow = Runner(0, 1, 5.0, measured(mean_s=5, p95_s=6))
    queued = Runner(2, 1, 1.0, measured(mean_s=1, p95_s=1.5, free=0, busy=1))
    free = Runner(0, 1, 2.0, measured())
    unmeasured = Runner(4)
    found = predict([slow, queued, free, unmeasured], BUDGET)
    assert found is not None
    assert (found.exec_s, found.wait_s) == (2, 0)
    assert predict([unmeasured, queued], BUDGET) == predict([queued], BUDGET)


COSTS = (CostTime(1, 0.1, 0.2, 50), CostTime(8, 0.8, 1.2, 50), CostTime(64, 0.001, 0.001, 2))


@pytest.mark.parametrize(
    ("cost", "mean_s", "p95_s"),
    [
        (1, 0.1, 0.2),
        (7, 0.8, 1.2),  # the bucket that it falls into
        (32, 3.2, 4.8),  # in proportion, with the spread of the nearest bucket
        (64, 6.4, 9.6),  # two executions in its bucket say nothing
        (0, 2.0, 3.0),  # it has none
    ],
)
def test_by_the_inputs_cost(cost: float, mean_s: float, p95_s: float) -> None:
    told = Capacity(slots=1, free=1, mean_s=2, p95_s=3, known=102, cost_s=0.1, by_cost=COSTS)
    found = predict([Runner(mean_s=2, capacity=told)], BUDGET, cost)
    assert found is not None
    assert (found.exec_s, found.exec_p95_s) == (pytest.approx(mean_s), pytest.approx(p95_s))


LOADS = st.integers(0, 1000)


@given(LOADS, LOADS, st.integers(1, 64), st.floats(0.001, 100), st.floats(0, 1e6))
def test_more_load_never_shortens_a_prediction(
    load: int, more: int, slots: int, mean_s: float, cost: float
) -> None:
    told = measured(slots=slots, mean_s=mean_s, p95_s=mean_s)
    less, later = (predict([Runner(one, slots, mean_s, told)], BUDGET, cost) for one in (load, load + more))
    assert less is not None
    assert later is not None
    assert later.total_s >= less.total_s
    assert less.has_room or not later.has_room


@given(st.lists(st.builds(Runner, LOADS, st.integers(1, 64), st.floats(0.001, 10)), min_size=1))
def test_another_runner_never_lengthens_it(runners: list[Runner]) -> None:
    def end(some: list[Runner]) -> float:
        found = predict(some, BUDGET)
        assert found is not None
        return found.wait_s + found.load_s + found.exec_s

    assert end(runners) <= min(end([one]) for one in runners)
