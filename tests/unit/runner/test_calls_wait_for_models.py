"""How calls, jobs and joined calls wait for models, over executors that load when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from bench import Bench, Scripted
from bench import run as run_bench
from job_bench import JobBench, a_job, job_bench

from gpu_runner.frames import Load, Loaded, LoadFailed, Loading, RunBatch, Unload, Unloaded
from headrace.link.frames import Refused

MIB = 2**20
FIRST, SECOND, ALWAYS = (f"resident_functions:{name}" for name in ("first", "second", "always"))
MODULES = ["resident_functions"]


def run(scenario: Callable[[Bench], Awaitable[None]], **options: Any) -> None:
    run_bench(scenario, modules=MODULES, **options)


def told(executor: Scripted) -> list[tuple[str, str]]:
    """What an executor was told to do with models."""
    frames: list[Any] = executor.sent
    return [(type(frame).__name__, frame.model) for frame in frames if isinstance(frame, Load | Unload)]


def load(executor: Scripted, model: str, mib: int = 40, seconds: float = 0.5) -> None:
    """What it was told to load is there."""
    assert told(executor)[-1] == ("Load", model)
    executor.say(Loading(model))
    executor.say(Loaded(model, mib * MIB, seconds))


def test_a_call_makes_its_model_be_loaded_and_starts_once_it_is_there() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        job, again = bench.gateway.send("with_first"), bench.gateway.send("with_first")
        await bench.turn()
        assert told(executor) == [("Load", FIRST)]
        assert executor.runs == []
        plain = bench.gateway.send("without")  # its main thread loads
        await bench.turn()
        assert executor.runs == []
        load(executor, FIRST)
        assert executor.runs == [job]
        for one in (job, again, plain):
            executor.finish(one)
        assert executor.runs == [job, again, plain]

    run(scenario)


def test_joined_calls_wait_for_their_model_as_one() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        jobs = [bench.gateway.send("joined") for _ in range(3)]
        await bench.turn()
        load(executor, FIRST)
        (batch,) = [frame for frame in executor.sent if isinstance(frame, RunBatch)]
        assert [item.job_id for item in batch.items] == jobs
        for job in jobs:
            executor.finish(job)

    run(scenario)


def test_the_call_that_runs_alone_has_its_models_loaded_where_it_will_run() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        bench.gateway.send("beside")
        await bench.turn()
        load(first, FIRST)  # its call runs: the other one is closed
        alone = bench.gateway.send("with_second", alone=True)
        await bench.turn()
        assert told(first) == [("Load", FIRST)]
        load(second, SECOND)
        assert second.runs == [alone]
        assert second.closed_for is not None

    run(scenario, executors=2)


def test_the_call_that_runs_alone_does_so_where_nothing_is_loaded_for_others() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        bench.supervisor.models.load(FIRST)
        await bench.turn()
        assert told(first) == [("Load", FIRST)]
        alone = bench.gateway.send("without", alone=True)
        assert second.runs == [alone]
        second.finish(alone)

    run(scenario, executors=2)


def test_the_call_that_runs_alone_stays_where_its_models_are_being_loaded() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        before = bench.gateway.send("without", seconds=60)
        assert first.runs == [before]
        alone = bench.gateway.send("with_first", alone=True)
        await bench.turn()
        assert told(second) == [("Load", FIRST)]
        second.say(Loading(FIRST))
        first.finish(before)
        await bench.turn()
        assert (told(first), first.closed_for) == ([], None)
        load(second, FIRST)
        assert second.runs == [alone]
        second.finish(alone)

    run(scenario, executors=2)


def test_one_more_executor_loads_what_calls_have_waited_for_as_long_as_a_load_takes() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.executors
        running = bench.gateway.send("with_first", seconds=60)
        await bench.turn()
        load(first, FIRST)
        waiting = bench.gateway.send("with_first")
        await bench.turn()
        assert first.runs == [running]
        await bench.until(lambda: told(second))
        load(second, FIRST)
        assert second.runs == [waiting]

    run(scenario, executors=2)


def test_a_wait_that_is_too_short_for_a_known_load_is_refused_with_its_time() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        bench.supervisor.models.load(FIRST)
        await bench.turn()
        load(executor, FIRST, seconds=7.0)
        bench.supervisor.models.unload(FIRST)
        await bench.turn()
        executor.say(Unloaded(FIRST, 40 * MIB))
        refused = bench.told(bench.gateway.send("with_first", wait=5))
        assert (refused.reason, refused.retry_after_s) == ("cold", 7.0)
        waiting = bench.gateway.send("with_first", wait=10)
        await bench.turn()
        executor.say(Loading(FIRST))
        # Who needs no model waits for the main thread all the same, and is told so.
        busy = bench.told(bench.gateway.send("without", wait=5))
        assert busy.reason == "full"
        assert 6 < busy.retry_after_s <= 7
        executor.say(Loaded(FIRST, 40 * MIB, 7.0))
        executor.finish(waiting)

    run(scenario, brief_wait=0.25)


def test_one_that_waits_in_vain_is_refused_as_cold_and_the_load_goes_on() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        job = bench.gateway.send("with_first", wait=0.1)
        await bench.until(lambda: bench.told(job))
        assert (bench.told(job).reason, bench.load("with_first")) == ("cold", 0)
        load(executor, FIRST)
        assert bench.gateway.send("with_first", wait=0.1) in executor.runs

    run(scenario)


@pytest.mark.parametrize("fits", [True, False])
def test_a_device_that_was_full_is_emptied_for_one_more_try(fits: bool) -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        bench.supervisor.models.book.budget = 100 * MIB
        held = bench.gateway.send("with_first")
        await bench.turn()
        load(executor, FIRST)
        executor.finish(held)
        job = bench.gateway.send("with_second", wait=60)
        await bench.turn()
        executor.say(Loading(SECOND))
        executor.say(LoadFailed(SECOND, "model second needs more than it gets", is_over=True))
        await bench.until(lambda: ("Unload", FIRST) in told(executor))
        assert "with_second" not in bench.supervisor.degraded
        for model, mib in ((ALWAYS, 10), (FIRST, 40)):
            if ("Unload", model) in told(executor):
                executor.say(Unloaded(model, mib * MIB))
        await bench.until(lambda: told(executor)[-1] == ("Load", SECOND))
        executor.say(Loading(SECOND))
        if fits:
            executor.say(Loaded(SECOND, 90 * MIB, 0.5))
            assert executor.runs[-1] == job
            executor.finish(job)
        else:
            executor.say(LoadFailed(SECOND, "model second needs more than it gets", is_over=True))
            refused = bench.told(job)
            assert isinstance(refused, Refused)
            assert (refused.reason, refused.detail) == ("degraded", "model second needs more than it gets")

    run(scenario)


# ---------------------------------------------------------------------- jobs


def run_jobs(scenario: Callable[[JobBench], Awaitable[None]], **options: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), job_bench("feed", "finish", modules=MODULES, **options) as bench:
            await scenario(bench)

    asyncio.run(limited())


def test_no_more_jobs_are_claimed_than_can_start_while_a_model_is_loaded() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        jobs = [a_job("with_first") for _ in range(5)]
        bench.submit(*jobs)
        await bench.ledger.until(lambda: told(executor))
        for _ in range(5):
            bench.feed.look()
            await bench.settled()
        assert len(bench.ledger.waiting["with_first"]) == 4
        load(executor, FIRST)
        for job in jobs:
            await bench.started(job)
            executor.finish(job.job_id)
        await bench.settled()

    run_jobs(scenario)


def test_jobs_that_wait_for_memory_keep_no_others_waiting() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        bench.supervisor.models.book.budget = 60 * MIB
        user = bench.gateway.send("beside", seconds=60)
        await bench.turn()
        load(executor, FIRST)
        assert executor.runs == [user]
        blocked = [a_job("with_second") for _ in range(3)]
        bench.submit(*blocked)
        await bench.until(lambda: bench.supervisor.models.is_blocked("with_second"))
        others = [a_job("without") for _ in range(4)]
        bench.submit(*others)
        for job in others:
            await bench.started(job)
            executor.finish(job.job_id)
            await bench.settled()
        assert len(bench.ledger.waiting["with_second"]) == 2  # one is here, and waits
        assert ("Unload", FIRST) not in told(executor)
        executor.finish(user)
        await bench.until(lambda: ("Unload", FIRST) in told(executor))
        executor.say(Unloaded(FIRST, 40 * MIB))
        await bench.until(lambda: told(executor)[-1] == ("Load", SECOND))
        load(executor, SECOND)
        for job in blocked:
            await bench.started(job)
            executor.finish(job.job_id)
        await bench.settled()

    run_jobs(scenario)


def test_a_claimed_job_whose_model_fails_is_given_back() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = a_job("with_broken")
        bench.submit(job)
        await bench.ledger.until(lambda: told(executor))
        executor.say(LoadFailed("resident_functions:broken", "no weights"))
        await bench.ledger.until(lambda: job.job_id in bench.ledger.outcomes)
        assert bench.ledger.outcomes[job.job_id].kind == "returned"
        assert "with_broken" not in bench.supervisor.claimable()

    run_jobs(scenario)
