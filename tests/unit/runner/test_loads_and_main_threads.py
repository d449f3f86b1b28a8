"""Where models are loaded while main threads are busy, and how often the supervisor thinks about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from bench import Bench
from bench import run as run_bench
from test_calls_wait_for_models import FIRST, MODULES, load, told

from gpu_runner.children import executors
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.frames import Loaded, LoadFailed, Loading, Unloaded
from gpu_runner.residency import failures
from gpu_runner.residency.residence import Residence

MIB = 2**20
BRIEF, BROKEN, ALWAYS = (f"resident_functions:{name}" for name in ("brief", "broken", "always"))


def run(scenario: Callable[[Bench], Awaitable[None]], **options: Any) -> None:
    run_bench(scenario, modules=MODULES, **options)


def test_a_load_goes_where_a_main_thread_is_free_first() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        running = [bench.gateway.send("without") for _ in range(2)]
        waiting = bench.gateway.send("with_first", wait=60)
        await bench.turn()
        assert told(first) == told(second) == []
        assert first.is_moving != second.is_moving  # one of them takes no more
        other = first if second.is_moving else second
        other.finish(next(job for job in running if job in other.runs))
        await bench.turn()
        load(other, FIRST)
        assert other.runs[-1] == waiting
        assert not any(one.is_moving for one in bench.executors)

    run(scenario, executors=2)


def test_a_main_thread_that_is_never_idle_loads_after_its_call() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        running = bench.gateway.send("without")
        waiting = bench.gateway.send("with_first", wait=60)
        await bench.turn()
        more = bench.gateway.send("without", wait=60)
        executor.finish(running)
        await bench.turn()
        load(executor, FIRST)
        assert executor.runs == [running, waiting]
        executor.finish(waiting)
        assert executor.runs[-1] == more

    run(scenario)


def test_who_leaves_before_the_load_has_begun_leaves_nothing_behind() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        running = bench.gateway.send("without")
        waiting = bench.gateway.send("with_first", wait=60)
        await bench.turn()
        bench.gateway.stop(waiting)
        await bench.until(lambda: not executor.is_moving)
        executor.finish(running)
        await bench.turn()
        assert told(executor) == []

    run(scenario)


def test_operators_loads_and_retries_go_to_who_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_FIRST_PAUSE_S", 0.01)

    async def scenario(bench: Bench) -> None:
        busy, idle = bench.executors
        bench.gateway.send("without")
        assert busy.runs
        bench.supervisor.models.load(FIRST)
        await bench.turn()
        load(idle, FIRST)
        bench.gateway.send("with_broken", wait=60)
        await bench.turn()
        idle.say(LoadFailed(BROKEN, "no weights"))
        await bench.until(lambda: told(idle).count(("Load", BROKEN)) == 2)
        assert told(busy) == []

    run(scenario, executors=2)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Residence]:
    """Grows with each decision."""
    looks: list[Residence] = []
    look = Residence.look

    def counted(residence: Residence) -> None:
        looks.append(residence)
        look(residence)

    monkeypatch.setattr(Residence, "look", counted)
    return looks


def test_a_model_that_has_expired_and_is_wanted_is_not_thought_about_on_and_on(
    looks: list[Residence],
) -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        used = bench.gateway.send("with_brief")
        await bench.turn()
        load(executor, BRIEF)
        executor.finish(used)
        bench.gateway.send("without")
        bench.gateway.send("with_brief", wait=30)
        await asyncio.sleep(0.35)  # it expires
        looks.clear()
        await asyncio.sleep(0.3)
        assert len(looks) <= 20
        assert ("Unload", BRIEF) not in told(executor)

    run(scenario)


def test_a_retry_that_loads_is_not_thought_about_on_and_on(
    looks: list[Residence], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_FIRST_PAUSE_S", 0.01)

    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        bench.gateway.send("with_broken")
        await bench.turn()
        executor.say(LoadFailed(BROKEN, "no weights"))
        await bench.until(lambda: told(executor).count(("Load", BROKEN)) == 2)
        executor.say(Loading(BROKEN))
        looks.clear()
        await asyncio.sleep(0.3)
        assert len(looks) <= 15

    run(scenario)


def test_operators_have_a_wrong_measurement_forgotten() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        models = bench.supervisor.models
        models.book.budget = 100 * MIB
        job = bench.gateway.send("with_unknown")
        await bench.turn()
        unknown = told(executor)[-1][1]
        load(executor, unknown, mib=120)
        executor.finish(job)
        models.unload(unknown)
        await bench.turn()
        executor.say(Unloaded(unknown, 120 * MIB))
        await bench.until(lambda: "with_unknown" in bench.supervisor.degraded)
        models.load(unknown)
        await bench.until(lambda: told(executor)[-1] == ("Load", unknown))
        assert "with_unknown" not in bench.supervisor.degraded
        load(executor, unknown, mib=60)

    run(scenario)


# ---------------------------------------------------------------------- lives that come to nothing


def test_what_is_to_be_loaded_again_survives_a_start_that_failed() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        job = bench.gateway.send("with_first")
        await bench.turn()
        load(executor, FIRST)
        executor.finish(job)
        executor.lose()
        models, process = bench.supervisor.models, cast(ExecutorProcess, executor)
        assert set(models.preload(process).models) == {FIRST, ALWAYS}
        models.unborn(process)
        assert not list(models.book.all_held())  # the room is free meanwhile
        executor.become_ready()
        assert executor.index == 0
        assert {held.model for _, held in models.book.all_held()} == {FIRST, ALWAYS}

    run(scenario)


def a_process() -> ExecutorProcess:
    config = ExecutorConfig(functions=(), device="cpu", threads=1, path=())
    ignore: Any = lambda *_: None  # noqa: E731
    return ExecutorProcess(0, cast(Any, None), config, ignore, ignore, ignore)


def test_a_start_that_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    process = a_process()
    told: list[ExecutorProcess] = []

    async def spawn() -> Any:
        raise OSError("no more processes")

    def unborn(one: ExecutorProcess) -> None:
        told.append(one)
        one.retire()

    monkeypatch.setattr(process, "_spawn", spawn)
    process.on_unborn = unborn
    asyncio.run(process.keep_running())
    assert told == [process]


def test_one_killed_as_it_loads_has_no_long_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_LAST_WORDS_S", 60.0)
    monkeypatch.setattr(executors, "_LAST_WORDS_KILLED_S", 0.0)

    class Stream:
        def __init__(self) -> None:
            self.is_over = asyncio.Event()

        def abort(self) -> None:
            self.is_over.set()

    async def scenario() -> None:
        process, stream = a_process(), Stream()
        process.kill_loading()
        process._ended(0, cast(Any, stream))
        async with asyncio.timeout(5):
            await stream.is_over.wait()

    asyncio.run(scenario())


def test_a_measured_model_was_loaded_beside_calls_or_not() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        models = bench.supervisor.models
        for is_beside in (True, False):
            job = bench.gateway.send("beside", seconds=60)
            await bench.turn()
            if is_beside:
                load(executor, FIRST)
            models.load(BRIEF)
            if not is_beside:
                executor.finish(job)
            await bench.turn()
            executor.say(Loading(BRIEF))
            executor.say(Loaded(BRIEF, 30 * MIB, 0.1))
            assert (BRIEF in models.book.unsure) is is_beside
            if is_beside:
                executor.finish(job)
                models.unload(BRIEF)
                await bench.turn()
                executor.say(Unloaded(BRIEF, 30 * MIB))

    run(scenario)
