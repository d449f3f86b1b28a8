"""What is kept for jobs is used, or free again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import bench
from bench import Bench
from job_bench import JobBench, a_job, job_bench

from headrace.link.frames import Refused


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


def test_a_call_waits_for_a_slot_that_is_kept_until_a_claim_is_answered() -> None:
    """However long those take that run: each second all free slots are kept for a moment."""

    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        bench.supervisor._books.brief_wait = 0.25
        executor.finish(bench.gateway.send("many"), seconds=60)
        running = bench.gateway.send("many")  # in one of three slots
        bench.ledger.open["claim"].clear()
        bench.feed.look()
        await bench.settled()
        assert bench.supervisor.slots_of("many").turns.reserved == 2
        calls = [bench.gateway.send("many") for _ in range(2)]
        assert [bench.told(call) for call in calls] == [None, None]
        too_many = bench.gateway.send("many")
        assert isinstance(bench.told(too_many), Refused)
        bench.ledger.open["claim"].set()
        await bench.settled()
        assert executor.runs[1:] == [running, *calls]
        for call in (running, *calls):
            executor.finish(call)

    run(scenario)


def test_a_slot_that_stays_kept_is_given_to_a_call_that_would_be_refused_for_it() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        first = bench.gateway.send("many")
        bench.supervisor.placing.hear([bench.supervisor.slots_of("many")])  # and nobody claims
        call = bench.gateway.send("many")
        await bench.until(lambda: bench.told(call) or call in executor.runs)
        assert executor.runs == [first, call]
        assert bench.told(call) is None
        for one in (first, call):
            executor.finish(one)

    bench.run(scenario, brief_wait=0.01)


def test_a_slot_that_was_just_kept_stays_so_for_a_call_whose_wait_is_over() -> None:
    """Else jobs would lose their turns to calls that have waited in vain for those that ran before."""

    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        running = [bench.gateway.send("many") for _ in range(3)]
        call = bench.gateway.send("many")
        slots = bench.supervisor.slots_of("many")
        bench.supervisor.placing.hear([slots])
        executor.finish(running[0])
        assert slots.turns.reserved == 1  # since after it came
        await bench.until(lambda: bench.told(call))
        assert isinstance(bench.told(call), Refused)
        assert slots.turns.reserved == 1
        for one in running[1:]:
            executor.finish(one)

    bench.run(scenario, brief_wait=0.01)
