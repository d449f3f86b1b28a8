"""The slots that a runner tells of are those of executors that can run the function, and so is the load."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from bench import Bench
from bench import run as run_bench

from gpu_runner import capacity
from gpu_runner.frames import Loaded, Loading, Unloaded
from headrace.capacity import Capacity

MIB = 2**20
ALWAYS, FIRST = "resident_functions:always", "resident_functions:first"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look is a new one."""
    monkeypatch.setattr(capacity, "_FRESH_S", 0.0)


def run(scenario: Callable[[Bench], Awaitable[None]], **options: Any) -> None:
    run_bench(scenario, modules=["resident_functions"], **options)


def told(bench: Bench, function: str) -> Capacity:
    """What each second's state says, which a greeting says as well."""
    state = bench.supervisor.state().capacity[function]
    assert {one.function: one.slots for one in bench.supervisor.services()}[function] == state.slots
    return state


def test_executors_that_are_not_ready_do_not_count_unless_none_is() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        assert told(bench, "without").slots == 1
        assert told(bench, "beside").slots == 4
        for number, executor in enumerate((first, second), start=1):
            executor.become_ready()
            assert (told(bench, "without").slots, told(bench, "without").free) == (number, number)
        first.lose()
        assert (told(bench, "without").slots, told(bench, "without").free) == (1, 1)
        second.lose()
        assert (told(bench, "without").slots, told(bench, "without").free) == (1, 0)

    run(scenario, executors=2, ready=False)


def test_executors_in_which_a_function_is_degraded_do_not_count_for_it() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        first.become_ready(without="it can't be imported")
        second.become_ready()
        assert (told(bench, "without").slots, told(bench, "without").free) == (1, 1)
        assert told(bench, "with_always").slots == 2
        second.lose()
        second.become_ready(without="it can't be imported")
        assert bench.supervisor.degraded["without"] == "it can't be imported"
        assert (told(bench, "without").slots, told(bench, "without").free) == (0, 0)

    run(scenario, executors=2, ready=False)


def test_what_runs_where_a_function_cannot_is_not_in_its_way() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        first.become_ready(without="it can't be imported")
        second.become_ready()
        running = bench.gateway.send("with_always")
        assert first.runs == [running]
        assert (bench.load("without"), bench.load("with_always")) == (0, 1)
        assert (told(bench, "without").busy, told(bench, "with_always").busy) == (0, 1)
        own = bench.gateway.send("without")
        assert second.runs == [own]
        assert (bench.load("without"), bench.load("with_always")) == (1, 2)
        assert (told(bench, "without").slots, told(bench, "without").free) == (1, 0)
        second.finish(own)
        assert bench.told(own).load == 0
        first.finish(running)

    run(scenario, executors=2, ready=False)


def test_executors_count_that_have_a_model_or_room_for_it() -> None:
    async def scenario(bench: Bench) -> None:
        first, _ = bench.executors
        book = bench.supervisor.models.book
        book.budget = 0  # not known: it may be loaded everywhere
        assert told(bench, "with_first").slots == 2
        for mib, slots in ((100, 2), (60, 1), (30, 0)):  # of which `always` takes 10 in one of them
            book.budget = mib * MIB
            bench.supervisor.models.look()
            assert (mib, told(bench, "with_first").slots) == (mib, slots)
        assert "with_first" in bench.supervisor.degraded
        book.budget = 60 * MIB
        bench.supervisor.models.look()
        running = bench.gateway.send("with_first")
        await bench.turn()
        assert told(bench, "with_first").slots == 1  # it loads
        first.say(Loading(FIRST))
        first.say(Loaded(FIRST, 40 * MIB, 0.5))
        assert (told(bench, "with_first").slots, told(bench, "with_first").free) == (1, 0)
        assert told(bench, "without").slots == 2
        assert bench.load("joined") == told(bench, "joined").slots  # in calls: all that fit a lot
        first.finish(running)
        assert (told(bench, "with_first").free, bench.load("joined")) == (1, 0)
        assert told(bench, "beside").slots == 4

    run(scenario, executors=2)


def test_where_all_let_go_of_a_model_one_counts() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        assert told(bench, "with_always").slots == 1
        assert bench.supervisor.models.unload(ALWAYS)
        await bench.turn()
        assert (told(bench, "with_always").slots, told(bench, "with_always").warmth) == (1, "cold")
        executor.say(Unloaded(ALWAYS, 0))
        await bench.turn()
        assert (told(bench, "with_always").slots, told(bench, "with_always").warmth) == (1, "cold")
        bench.supervisor.models.book.budget = 35 * MIB
        for mib in (20, -1):  # with and without room for it
            bench.supervisor.models.book.places[0].base = (35 - mib) * MIB
            running = bench.gateway.send("without")
            assert (told(bench, "with_always").busy, bench.load("with_always")) == (1, 1)  # in its way
            executor.finish(running)
            assert (told(bench, "with_always").free, bench.load("with_always")) == (1, 0)

    run(scenario)


def test_an_executor_whose_model_is_to_go_does_not_count_beside_another() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        for executor in (first, second):
            executor.say(Loading(FIRST))
            executor.say(Loaded(FIRST, 40 * MIB, 0.5))
        running = bench.gateway.send("with_first")
        assert first.runs == [running]
        assert told(bench, "with_first").slots == 2
        bench.supervisor.models.unload(FIRST)
        bench.supervisor.models._asked.to_go.discard((second.index, FIRST))
        await bench.turn()
        assert (told(bench, "with_first").slots, bench.load("with_first")) == (1, 0)
        first.finish(running)

    run(scenario, executors=2)


def test_the_load_of_joined_calls_leaves_out_what_is_not_in_their_way() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        first.become_ready(joined="it can't be imported")
        second.become_ready()
        running = bench.gateway.send("without")
        assert first.runs == [running]
        assert (bench.load("joined"), bench.load("without")) == (0, 1)
        first.finish(running)

    run(scenario, executors=2, ready=False)
