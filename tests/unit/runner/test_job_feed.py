"""How jobs come to the slots: what is claimed, when, and who has to wait for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from job_bench import JobBench, a_job, job_bench

from gpu_runner.jobs import feed as module
from headrace.errors import DatabaseUnavailable
from headrace.link.frames import Result


def run(scenario: Callable[[JobBench], Awaitable[None]], **options: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), job_bench("feed", "finish", **options) as bench:
            await scenario(bench)

    asyncio.run(limited())


def test_a_job_is_claimed_when_its_lane_is_heard_of() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = a_job()
        bench.submit(job)
        await bench.settled()
        assert executor.runs == [job.job_id]
        executor.finish(job.job_id)
        await bench.settled()
        outcome = bench.ledger.outcomes[job.job_id]
        assert (outcome.kind, outcome.output, outcome.token) == ("succeeded", b"{}", job.token)
        assert bench.held.named() == []
        assert bench.load() == 0

    run(scenario)


def test_no_more_is_claimed_than_fits() -> None:
    async def scenario(bench: JobBench) -> None:
        group = bench.feed._lane_group["many"]  # three slots in each executor
        bench.submit(*(a_job("many") for _ in range(10)))
        await bench.settled()
        assert len(bench.starts()) == 6
        assert all(free[group] <= 6 for _, _, free in bench.ledger.claims)
        running = bench.starts()
        for done, job in enumerate(running, start=1):
            (executor,) = [one for one in bench.executors if job in one.calls]
            executor.finish(job)
            await bench.settled()
            assert len(bench.starts()) == min(10, 6 + done)
        for executor in bench.executors:
            for job in list(executor.calls):
                executor.finish(job)

    run(scenario, executors=2)


def test_direct_calls_are_alone_again_when_no_job_waits() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        turns = bench.supervisor.slots_of("echo").turns
        job = a_job()
        bench.submit(job)
        await bench.settled()
        executor.finish(job.job_id, seconds=0.0001)
        await bench.settled()
        assert not turns.contended
        calls = [bench.gateway.send("echo") for _ in range(3)]
        assert executor.runs[1:] == calls  # handed ahead, as before
        for call in calls:
            executor.finish(call)

    run(scenario)


def test_a_slot_is_kept_while_the_claim_is_on_its_way() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        bench.ledger.open["claim"].clear()
        bench.feed.heard("echo")
        await bench.settled()
        assert len(bench.ledger.claims) > 1
        call = bench.gateway.send("echo")
        assert executor.runs == []
        bench.ledger.open["claim"].set()  # with nothing
        await bench.settled()
        assert executor.runs == [call]
        executor.finish(call)

    run(scenario)


@pytest.mark.parametrize(("function", "slots"), [("echo", 1), ("many", 3)])
def test_jobs_and_calls_take_turns(function: str, slots: int) -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        jobs = [a_job(function) for _ in range(30)]
        bench.submit(*jobs)
        await bench.settled()
        calls = [bench.gateway.send(function) for _ in range(30)]
        assert executor.runs == [job.job_id for job in jobs[:slots]]
        order: list[str] = []
        while executor.calls:
            first = next(iter(executor.calls))
            order.append(first)
            executor.finish(first, seconds=0.0001)
            await bench.settled()
            assert len(executor.calls) <= slots
        kinds = ["job" if job.startswith("job-of-ledger") else "call" for job in executor.runs]
        for upto in range(slots + 2, 60):
            ahead = kinds[slots:upto].count("job") - kinds[slots:upto].count("call")
            assert abs(ahead) <= slots, kinds
            if upto > 50:
                break
        assert [one for one in executor.runs if one in calls] == calls
        assert sorted(executor.runs) == sorted([*calls, *(job.job_id for job in jobs)])
        assert all(isinstance(bench.told(call), Result) for call in calls)

    run(scenario)


def test_nothing_is_handed_ahead_while_jobs_may_wait() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        executor.finish(bench.gateway.send("echo"), seconds=0.0001)  # known to be short
        first = bench.gateway.send("echo")
        bench.submit(a_job())
        calls = [bench.gateway.send("echo") for _ in range(3)]
        await bench.settled()
        assert executor.runs[1:] == [first]
        executor.finish(first, seconds=0.0001)
        await bench.settled()
        job = executor.runs[-1]
        assert job.startswith("job-of-ledger")
        assert len(executor.runs) == 3
        executor.finish(job, seconds=0.0001)
        assert executor.runs[3:] == calls[:1]  # more jobs may be waiting still
        for call in calls:
            executor.finish(call, seconds=0.0001)
            await bench.settled()
            assert isinstance(bench.told(call), Result)

    run(scenario)


def test_what_is_heard_during_a_claim_is_claimed_after_it() -> None:
    """A wake-up that comes while the queue is being read must not be lost."""

    async def scenario(bench: JobBench) -> None:
        bench.ledger.open["claim"].clear()
        bench.feed.heard("many")
        await bench.settled()
        before = len(bench.ledger.claims)
        job = a_job("many")
        bench.submit(job)  # the claim on its way has looked already
        bench.ledger.open["claim"].set()
        await bench.settled()
        assert bench.starts() == [job.job_id]
        assert len(bench.ledger.claims) > before
        bench.executors[0].finish(job.job_id)

    run(scenario)


def test_one_claim_is_on_its_way_at_a_time() -> None:
    async def scenario(bench: JobBench) -> None:
        bench.ledger.open["claim"].clear()
        for name in ("echo", "many", "together"):
            bench.feed.heard(name)
            await bench.settled()
        assert len(bench.ledger.claims) == 2  # the first look, and the first that was heard of
        bench.ledger.open["claim"].set()
        await bench.settled()
        assert len(bench.ledger.claims) == 3  # the others together

    run(scenario)


def test_lanes_that_share_slots_come_first_in_turn() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        names = ["echo", "whoami", "one", "other"]
        bench.submit(*(a_job(name) for name in names for _ in range(40)))
        started: list[str] = []
        for _ in range(80):
            await bench.settled()
            (job_id,) = executor.calls
            started.append(executor.calls[job_id].frame.function)
            executor.finish(job_id)
        assert {name: started.count(name) > 5 for name in names} == dict.fromkeys(names, True)
        bench.feed.stop()

    run(scenario)


def test_nothing_is_claimed_without_an_executor_or_while_draining() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        bench.submit(a_job(), a_job())
        await bench.settled()
        assert bench.ledger.claims == []
        executor.become_ready()
        await bench.settled()
        (first,) = executor.runs
        bench.supervisor.draining = True
        bench.feed.stop()
        executor.finish(first)
        await bench.settled()
        assert executor.runs == [first]
        assert len(bench.ledger.waiting["echo"]) == 1

    run(scenario, ready=False)


def test_what_is_degraded_is_not_claimed_and_keeps_no_slot() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        executor.lose()
        executor.become_ready(many="no weights")
        good, bad = a_job("echo"), a_job("many")
        bench.submit(bad, good)
        await bench.settled()
        assert executor.runs == [good.job_id]
        assert bench.supervisor.slots_of("many").turns.reserved == 0
        executor.lose()
        executor.become_ready()
        await bench.started(bad)  # by the next look
        executor.finish(bad.job_id)

    run(scenario)


def test_a_claim_that_is_not_answered_keeps_no_slot_for_long() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        jobs = [a_job(), a_job()]
        bench.ledger.open["claim"].clear()
        bench.submit(*jobs)
        call, second = bench.gateway.send("echo"), bench.gateway.send("echo")
        await bench.ledger.until(lambda: executor.runs)
        assert executor.runs == [call]
        bench.ledger.open["claim"].set()  # late, and the slot is taken
        await bench.settled()
        assert executor.runs == [call]
        executor.finish(call)
        await bench.settled()
        assert executor.runs == [call, jobs[0].job_id]  # it was there first
        executor.finish(jobs[0].job_id)
        await bench.settled()
        assert executor.runs[2:] == [second]
        executor.finish(second)
        await bench.started(jobs[1])
        executor.finish(jobs[1].job_id)

    run(scenario)


def test_direct_calls_go_on_without_postgres_and_claims_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.02)

    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        for command in ("claim", "next_due"):
            bench.ledger.trouble[command] = lambda _: DatabaseUnavailable("away")
        job = a_job()
        bench.submit(job)
        lost = job  # its claim's reply was
        await bench.settled()
        call = bench.gateway.send("echo")
        assert executor.runs == [call]
        executor.finish(call, seconds=0.0001)
        calls = [bench.gateway.send("echo") for _ in range(3)]
        assert executor.runs == [call, *calls]  # handed ahead, too
        for one in calls:
            executor.finish(one)
        bench.ledger.trouble.clear()
        job = a_job()
        bench.ledger.add(job)  # nothing is heard of it
        await bench.started(job)
        executor.finish(job.job_id)
        assert lost.job_id not in executor.runs

    run(scenario)


def test_a_retry_is_claimed_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 3600.0)

    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = a_job()
        bench.submit(job)
        await bench.settled()
        again = a_job(job_id=job.job_id, attempt=2)
        bench.ledger.add(again)
        bench.ledger.due = 0.05
        executor.lose()  # its job is lost, and put back with a delay
        executor.become_ready()
        await bench.ledger.until(lambda: len(executor.runs) == 2)
        assert bench.ledger.outcomes[job.job_id].kind == "lost"
        executor.finish(job.job_id)

    run(scenario)


def test_a_cancel_that_overtakes_the_claims_reply_counts() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        bench.ledger.open["claim"].clear()
        job = a_job()
        bench.submit(job)
        await bench.settled()
        bench.feed.cancelled(job.job_id)
        bench.feed.cancelled("somebody else's")
        bench.ledger.open["claim"].set()
        await bench.settled()
        assert executor.stops == [job.job_id]
        bench.feed.cancelled(job.job_id)  # once is enough
        assert executor.stops == [job.job_id]
        executor.finish(job.job_id)

    run(scenario)


def test_what_a_claim_brings_to_a_draining_runner_is_given_back() -> None:
    async def scenario(bench: JobBench) -> None:
        bench.ledger.open["claim"].clear()
        job = a_job()
        bench.submit(job)
        await bench.settled()
        call = bench.gateway.send("echo")
        bench.supervisor.draining = True
        bench.feed.stop()
        bench.ledger.open["claim"].set()
        await bench.settled()
        assert bench.starts() == [call]
        assert bench.ledger.outcomes[job.job_id].kind == "returned"
        assert not bench.supervisor.slots_of("echo").turns.contended
        bench.executors[0].finish(call)

    run(scenario)


def test_a_job_whose_row_was_locked_is_looked_for_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 60.0)

    async def scenario(bench: JobBench) -> None:
        await bench.settled()
        (executor,) = bench.executors
        job = a_job()
        bench.feed.heard("echo")  # the claim finds nothing: the row is locked
        await bench.settled()
        assert executor.runs == []
        bench.ledger.add(job)  # nobody tells that it is free
        async with asyncio.timeout(5):
            while not executor.runs:
                await asyncio.sleep(0.001)
        assert executor.runs == [job.job_id]
        executor.finish(job.job_id)

    run(scenario)


def test_the_ledger_is_told_how_long_executions_take() -> None:
    """Of jobs and of direct calls; of those alone that succeeded, and not before there are some."""

    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors

        async def expected() -> dict[str, float]:
            bench.feed.look()
            await bench.settled()
            return {lane.function: lane.expected_s for lane in bench.ledger.claims[-1][1]}

        for seconds in (9.0, 0.3, 0.2, 0.1):
            executor.finish(bench.gateway.send("echo"), seconds=seconds)
        job = a_job()
        bench.submit(job)
        await bench.settled()
        assert (await expected())["many"] == 0.0
        executor.finish(job.job_id, seconds=0.25)
        await bench.settled()
        found = await expected()
        assert (found["echo"], found["many"]) == (0.25, 0.0)

    run(scenario)
