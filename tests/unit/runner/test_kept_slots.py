"""What is kept for jobs is used, or free again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from job_bench import JobBench, a_job, job_bench


def run(scenario: Callable[[JobBench], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), job_bench("feed", "finish") as bench:
            await scenario(bench)

    asyncio.run(limited())


def test_a_job_that_waits_for_its_own_earlier_start_keeps_no_slot() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        turns = bench.supervisor.slots_of("many").turns  # three slots
        jobs = [a_job("many"), a_job("many")]
        bench.submit(*jobs)
        await bench.settled()
        again = a_job("many", job_id=jobs[0].job_id, attempt=2)
        bench.submit(again)  # all that is asked for
        await bench.settled()
        assert executor.stops == [jobs[0].job_id]
        assert turns.reserved == 0
        call = bench.gateway.send("many")
        assert bench.told(call) is None
        assert executor.runs[2:] == [call]
        executor.finish(call)
        await bench.settled()
        later = a_job("many")
        bench.submit(later)
        await bench.settled()
        assert later.job_id in executor.runs
        for job_id in (jobs[0].job_id, jobs[1].job_id, later.job_id):
            executor.finish(job_id)
        await bench.settled()
        executor.finish(again.job_id)

    run(scenario)


def test_a_job_that_is_given_back_keeps_no_slot() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        turns = bench.supervisor.slots_of("echo").turns
        bench.ledger.open["claim"].clear()
        lost, later = a_job(), a_job()
        bench.submit(lost)
        await bench.settled()
        executor.lose()  # while the claim is on its way
        bench.ledger.open["claim"].set()
        await bench.settled()
        assert bench.ledger.outcomes[lost.job_id].kind == "returned"
        assert turns.reserved == 0
        executor.become_ready()
        bench.submit(later)
        await bench.settled()
        assert executor.runs == [later.job_id]
        executor.finish(later.job_id)

    run(scenario)


def test_what_is_free_is_asked_for_when_the_claim_has_its_name() -> None:
    """That may take as long as a renewal hangs: direct calls have the slots by then."""

    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        bench.ledger.open["renew"].clear()
        renewing = asyncio.create_task(bench.leases.renew())
        await bench.settled()
        for _ in range(8):
            bench.claim_ids.done(await bench.claim_ids.take())  # all that the renewal lists
        before = len(bench.ledger.claims)
        job, other = a_job("echo"), a_job("many")
        bench.submit(job, other)
        call = bench.gateway.send("echo")
        await bench.settled()
        assert executor.runs == []
        await bench.ledger.until(lambda: executor.runs)
        assert executor.runs == [call]
        bench.ledger.open["renew"].set()
        await renewing
        await bench.settled()
        assert executor.runs == [call, other.job_id]  # though what was kept for it had been let go
        group = bench.feed._lane_group["echo"]
        assert {free[group] for _, _, free in bench.ledger.claims[before:]} == {0}
        executor.finish(call)
        await bench.started(job)
        for one in (job, other):
            executor.finish(one.job_id)

    run(scenario)


def test_a_claim_for_which_nothing_is_free_any_more_is_not_named_for_ever() -> None:
    async def scenario(bench: JobBench) -> None:
        bench.ledger.open["claim"].clear()
        bench.feed.heard("echo")
        await bench.settled()
        bench.supervisor.draining = True
        bench.ledger.open["claim"].set()
        bench.feed.heard("many")
        await bench.settled()
        with bench.claim_ids.listed() as listed:
            assert len(listed) == 8

    run(scenario)
