"""Handovers of a runner that leaves."""

from __future__ import annotations

import asyncio

import pytest
from handover_bench import Clock, hand_over, lose_replies, mend, run, take_nothing, tried
from job_bench import JobBench

from headrace.errors import DatabaseNotReached, DatabaseUnavailable
from headrace.link.frames import Handed, Lost


def test_a_runner_that_leaves_waits_for_what_is_on_its_way() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        bench.ledger.open["reply"].clear()
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await bench.settled()
        bench.executors[0].finish(job_id)
        flush = asyncio.create_task(bench.handovers.flush())
        await bench.settled()
        assert not flush.done()
        bench.ledger.open["reply"].set()
        await flush
        assert bench.told(job_id) == Handed(job_id)

    run(scenario)


def test_a_runner_that_leaves_records_nothing_more_and_says_how_each_ended() -> None:
    async def scenario(bench: JobBench, clock: Clock) -> None:
        (executor, other) = bench.executors
        lose_replies(bench)
        bench.ledger.trouble["finish"] = lambda _: DatabaseUnavailable("away")
        lost, running_still = bench.gateway.send("many"), bench.gateway.send("many")
        late = bench.gateway.send("many")
        for job_id in (lost, running_still):
            hand_over(bench, job_id)
        await tried(bench)
        ended = executor if lost in executor.calls else other
        ended.lose()
        assert bench.told(lost) is None
        bench.handovers.leave()
        assert isinstance(bench.told(lost), Lost)
        hand_over(bench, late)
        for one in bench.executors:
            if one.calls:
                one.lose()
        assert isinstance(bench.told(running_still), Lost)
        assert isinstance(bench.told(late), Lost)
        assert {call.job_id for _, calls in bench.ledger.handovers for call in calls} == {lost, running_still}
        mend(bench)
        await bench.ledger.until(lambda: not bench.handovers.settling.count())
        await bench.settled()
        clock.now += 1

    run(scenario, executors=2)


@pytest.mark.parametrize("may_be_recorded", [True, False])
def test_what_runs_when_a_runner_leaves_is_killed_and_not_charged(*, may_be_recorded: bool) -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        if may_be_recorded:
            lose_replies(bench)
        else:
            take_nothing(bench, DatabaseNotReached("away"))
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench)
        while not may_be_recorded and bench.handovers.leases_until():  # a try is on its way
            await asyncio.sleep(0)
        bench.handovers.leave()
        assert executor.killed_for.job_id == job_id
        executor.lose()
        assert bench.told(job_id) == Lost(job_id, 1, charged=False, suspect=False)
        await bench.handovers.flush()
        mend(bench)
        await bench.ledger.until(lambda: not bench.handovers.settling.count())
        kinds = [outcome.kind for outcome in bench.ledger.outcomes.values()]
        assert kinds == (["returned"] if may_be_recorded else [])

    run(scenario)
