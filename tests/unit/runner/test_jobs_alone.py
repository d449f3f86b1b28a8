"""Jobs that are to run alone come one after the other: the others wait in the ledger, for any runner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from job_bench import JobBench, a_job, job_bench

from gpu_runner.jobs import feed as module


@pytest.fixture(autouse=True)
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found by a look that is due."""
    monkeypatch.setattr(module, "LOOK_S", 60.0)


def run(scenario: Callable[[JobBench], Awaitable[None]], **options: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), job_bench("feed", "finish", **options) as bench:
            await scenario(bench)

    asyncio.run(limited())


def test_jobs_that_run_alone_are_claimed_one_after_the_other() -> None:
    """As soon as the one before has ended; others go on meanwhile, in the other executor."""

    async def scenario(bench: JobBench) -> None:
        suspects = [a_job("many", alone=True) for _ in range(3)]
        others = [a_job("many") for _ in range(9)]
        bench.submit(*suspects, *others)
        await bench.settled()
        first, second = bench.executors
        for number, suspect in enumerate(suspects, start=1):
            await bench.settled()
            (alone,) = [one for one in bench.executors if suspect.job_id in one.calls]
            assert list(alone.calls) == [suspect.job_id]
            assert sum(job.alone for job in bench.ledger.waiting["many"]) == len(suspects) - number
            beside = second if alone is first else first
            for job_id in list(beside.calls):
                beside.finish(job_id)
                await bench.settled()
            assert not {job.job_id for job in suspects[number:]} & set(bench.starts())
            alone.finish(suspect.job_id)
        await bench.settled()
        assert not any(bench.ledger.waiting.values())
        for executor in bench.executors:
            for job_id in list(executor.calls):
                executor.finish(job_id)
        assert sorted(bench.starts()) == sorted(job.job_id for job in [*suspects, *others])
        assert {0, 1} == set(bench.ledger.most_alone)

    run(scenario, executors=2)


@pytest.mark.parametrize("end", ["stopped", "lost"])
def test_the_next_job_that_runs_alone_is_claimed_however_the_one_before_ends(end: str) -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        before = bench.gateway.send("many")
        suspects = [a_job("many", alone=True) for _ in range(2)]
        bench.submit(*suspects)
        await bench.settled()
        assert executor.runs == [before]
        if end == "stopped":
            bench.feed.cancelled(suspects[0].job_id)  # while it waits
            executor.finish(before)
        else:
            executor.finish(before)
            assert executor.runs == [before, suspects[0].job_id]
            executor.lose()
            executor.become_ready()
        await bench.settled()
        assert executor.runs[-1] == suspects[1].job_id
        executor.finish(suspects[1].job_id)

    run(scenario)


def test_no_job_that_runs_alone_is_claimed_while_a_direct_call_waits_to() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        before = bench.gateway.send("many")
        call = bench.gateway.send("many", alone=True)
        suspect = a_job("many", alone=True)
        bench.submit(suspect)
        await bench.settled()
        assert bench.ledger.waiting["many"]
        executor.finish(before)
        await bench.settled()
        assert (executor.runs, list(executor.calls)) == ([before, call], [call])
        executor.finish(call)
        await bench.settled()
        assert executor.runs == [before, call, suspect.job_id]
        executor.finish(suspect.job_id)

    run(scenario)


def test_a_job_that_runs_alone_does_so_too_where_its_earlier_start_has_to_end_first() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        first = a_job("many")
        bench.submit(first)
        await bench.settled()
        beside = bench.gateway.send("many")
        again = a_job("many", job_id=first.job_id, attempt=3, alone=True)
        bench.submit(again)
        await bench.settled()
        executor.finish(first.job_id)
        await bench.settled()
        assert list(executor.calls) == [beside]
        executor.finish(beside)
        assert executor.runs == [first.job_id, beside, first.job_id]
        executor.finish(first.job_id)

    run(scenario)
