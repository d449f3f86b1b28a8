"""Handovers where an owner cancels, somebody else has the job, or Postgres is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from handover_bench import Clock, hand_over, lose_replies, mend, run, take_nothing, tried
from job_bench import JobBench, Row
from rig import Gateway

from gpu_runner.frames import Failed
from headrace.errors import DatabaseBusy, DatabaseError, DatabaseNotReached, DatabaseUnavailable
from headrace.link.frames import Error, Fenced, Handed, Lost, Result


@pytest.mark.parametrize("when", ["in flight", "recorded", "told by the ledger"])
def test_a_cancel_stops_it(when: str) -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        bench.ledger.open["reply"].clear()
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await bench.settled()
        if when == "in flight":
            bench.handovers.cancelled(job_id)
        elif when == "told by the ledger":
            bench.ledger.rows[job_id].state = "cancel_requested"
        bench.ledger.open["reply"].set()
        await bench.settled()
        if when == "recorded":
            bench.feed.cancelled(job_id)
        assert executor.stops == [job_id]
        executor.say(Failed(job_id, "stopped", "", 0.1))
        await bench.settled()
        assert bench.ledger.outcomes[job_id].category == "cancelled"

    run(scenario)


def test_the_same_call_sent_again_doesnt_stop_a_job() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await bench.settled()
        other = Gateway(bench.supervisor)
        other.send("many", job_id=job_id)
        refused: Any = other.answers[job_id].result()
        assert refused.reason == "full"
        assert executor.stops == []
        executor.finish(job_id)

    run(scenario)


# ---------------------------------------------------------------------- another has it


@pytest.mark.parametrize("state", ["queued", "running", "succeeded"])
def test_fenced_it_is_stopped_and_what_it_says_is_of_no_use(state: Any) -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        job_id = bench.gateway.send("many")
        bench.ledger.rows[job_id] = Row("another", state)
        hand_over(bench, job_id)
        await bench.settled()
        assert bench.told(job_id) == Fenced(job_id)
        assert executor.stops == [job_id]
        executor.finish(job_id)
        await bench.settled()
        assert bench.ledger.batches == []
        assert bench.ledger.rows[job_id] == Row("another", state)
        assert bench.supervisor.call_of(job_id) is None
        assert bench.held.named() == []

    run(scenario)


def test_one_that_the_ledger_took_for_lost_meanwhile_is_fenced() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        lose_replies(bench)
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench)
        bench.ledger.rows[job_id].state = "queued"  # reaped
        mend(bench)
        await tried(bench)
        assert bench.told(job_id) == Fenced(job_id)
        assert bench.executors[0].stops == [job_id]
        bench.executors[0].finish(job_id)

    run(scenario)


# ---------------------------------------------------------------------- Postgres away


def test_what_isnt_sent_is_tried_again_until_it_is() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        take_nothing(bench, DatabaseNotReached("away"))
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench, 3)
        assert bench.told(job_id) is None
        mend(bench)
        await tried(bench)
        assert bench.told(job_id) == Handed(job_id)
        bench.executors[0].finish(job_id)

    run(scenario)


@pytest.mark.parametrize("error", [DatabaseNotReached("away"), DatabaseBusy("locked"), DatabaseError("no")])
def test_where_nothing_took_effect_its_end_is_the_answer_and_nothing_is_settled(error: DatabaseError) -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        take_nothing(bench, error)
        done, lost = bench.gateway.send("many"), bench.gateway.send("many")
        hand_over(bench, done)
        hand_over(bench, lost)
        await tried(bench)
        bench.ledger.open["hand_over"].clear()
        await tried(bench)
        bench.executors[0].finish(done)  # while the next is on its way
        bench.ledger.open["hand_over"].set()
        await bench.ledger.until(lambda: bench.told(done))
        bench.executors[0].lose()
        await bench.ledger.until(lambda: bench.told(lost))
        assert isinstance(bench.told(done), Result)
        assert bench.told(lost) == Lost(lost, 1, charged=True, load=bench.told(lost).load)
        assert bench.handovers.settling.count() == 0
        mend(bench)
        await bench.settled()
        assert bench.ledger.rows == {}

    run(scenario)


def test_its_lease_doesnt_end_what_surely_isnt_recorded() -> None:
    async def scenario(bench: JobBench, clock: Clock) -> None:
        take_nothing(bench, DatabaseNotReached("away"))
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench)
        clock.now += 1000
        while bench.handovers.leases_until():  # a try is on its way
            await asyncio.sleep(0)
        bench.handovers.guard(clock.now)
        assert bench.executors[0].stops == []
        bench.executors[0].finish(job_id)
        await bench.ledger.until(lambda: bench.told(job_id))

    run(scenario)


def test_what_postgres_refuses_doesnt_keep_others() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        bench.ledger.open["hand_over"].clear()
        first = bench.gateway.send("together")
        hand_over(bench, first)
        await bench.settled()
        bad, good = bench.gateway.send("together"), bench.gateway.send("together")
        hand_over(bench, bad)
        hand_over(bench, good)
        bench.ledger.trouble["hand_over"] = lambda calls: (
            DatabaseError("no") if any(call.job_id == bad for call in calls) else None
        )
        bench.ledger.open["hand_over"].set()
        await bench.ledger.until(lambda: bench.told(good))
        assert bench.told(good) == Handed(good)
        assert bench.told(bad) is None
        for job_id in (first, bad, good):
            executor.finish(job_id)
        await bench.ledger.until(lambda: bench.told(bad))
        assert isinstance(bench.told(bad), Result)

    run(scenario)


def test_a_lost_reply_is_read_again_under_the_same_names() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        lose_replies(bench)
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench, 2)
        assert bench.told(job_id) is None
        (claim_id,) = bench.claim_ids._in_flight
        mend(bench)
        await tried(bench)
        assert bench.told(job_id) == Handed(job_id)
        assert {name for name, _ in bench.ledger.handovers} == {claim_id}
        assert len({call.token for _, calls in bench.ledger.handovers for call in calls}) == 1
        bench.executors[0].finish(job_id)

    run(scenario)


@pytest.mark.parametrize("is_there", [True, False])
def test_done_while_that_isnt_known_it_is_answered_and_settled(*, is_there: bool) -> None:
    async def scenario(bench: JobBench, clock: Clock) -> None:
        (executor,) = bench.executors
        if is_there:
            lose_replies(bench)
        else:
            take_nothing(bench, DatabaseUnavailable("lost"))
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench)
        (claim_id,) = bench.claim_ids._in_flight
        bench.ledger.trouble["finish"] = lambda _: DatabaseUnavailable("still away")
        executor.finish(job_id)
        assert isinstance(bench.told(job_id), Result)
        await bench.settled()
        assert bench.claim_ids._in_flight == {claim_id}  # no renewal gives it back
        sent = len(bench.ledger.handovers)
        mend(bench)
        if not is_there:
            await bench.ledger.until(lambda: len(bench.ledger.batches) >= 3)
            assert bench.claim_ids._in_flight == {claim_id}  # it may come yet
            clock.now += 100
        await bench.ledger.until(lambda: not bench.handovers.settling.count())
        if is_there:
            assert bench.ledger.rows[job_id].state == "succeeded"
        else:
            assert bench.ledger.rows == {}
        assert len(bench.ledger.handovers) <= sent + 1  # none that began after its end
        assert {call.job_id for _, calls in bench.ledger.handovers for call in calls} == {job_id}

    run(scenario)


def test_an_insert_that_comes_late_is_settled() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        take_nothing(bench, DatabaseUnavailable("lost"))
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench)
        bench.executors[0].finish(job_id)
        mend(bench)
        await bench.ledger.until(lambda: len(bench.ledger.batches) >= 2)
        token = bench.ledger.handovers[0][1][0].token
        bench.ledger.rows[job_id] = Row(token)  # its transaction was slow, and has committed now
        await bench.ledger.until(lambda: not bench.handovers.settling.count())
        assert bench.ledger.rows[job_id] == Row(token, "succeeded", writes=1)

    run(scenario)


def test_the_insert_of_a_large_input_may_come_later() -> None:
    async def scenario(bench: JobBench, clock: Clock) -> None:
        take_nothing(bench, DatabaseUnavailable("lost"))
        job_id = bench.gateway.send("many", text="x" * 10 * 2**20)  # 40 s
        hand_over(bench, job_id)
        await tried(bench)
        bench.executors[0].finish(job_id)
        mend(bench)
        clock.now += bench.ledger.lease_s + 59
        before = len(bench.ledger.batches)
        await bench.ledger.until(lambda: len(bench.ledger.batches) >= before + 2)
        assert bench.handovers.settling.count() == 1
        clock.now += 2
        await bench.ledger.until(lambda: not bench.handovers.settling.count())

    run(scenario)


@pytest.mark.parametrize("end", ["lost", "retryable"])
def test_where_another_start_is_needed_the_ledger_decides(end: str) -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        lose_replies(bench)
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench)
        if end == "lost":
            executor.lose()
        else:
            executor.say(Failed(job_id, "function-failed", "Not now.", 0.1, retryable=True))
        await tried(bench)
        assert bench.told(job_id) is None
        mend(bench)
        await bench.ledger.until(lambda: bench.told(job_id))
        assert bench.told(job_id) == Handed(job_id)
        await bench.settled()
        assert bench.ledger.outcomes[job_id].kind == ("lost" if end == "lost" else "retry")
        assert bench.ledger.rows[job_id].state == "queued"

    run(scenario)


def test_what_may_be_recorded_is_stopped_before_another_may_start_it() -> None:
    async def scenario(bench: JobBench, clock: Clock) -> None:
        (executor,) = bench.executors
        lose_replies(bench)
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench)
        (until,) = bench.handovers.leases_until()
        assert until == clock.now + bench.ledger.lease_s - 2
        bench.handovers.guard(until - 0.1)
        assert executor.stops == []
        bench.handovers.guard(until)
        assert executor.stops == [job_id]
        bench.handovers.guard(until + 1.9)
        assert executor.killed_for.job_id == job_id
        bench.ledger.trouble["finish"] = lambda _: DatabaseUnavailable("away")
        executor.lose()
        lost = bench.told(job_id)
        assert isinstance(lost, Lost)
        assert not lost.charged
        assert not lost.suspect
        await bench.settled()
        mend(bench)
        await bench.ledger.until(lambda: not bench.handovers.settling.count())
        assert bench.ledger.outcomes[job_id].kind == "returned"

    run(scenario)


def test_a_failure_that_isnt_known_to_be_recorded_is_answered_too() -> None:
    async def scenario(bench: JobBench, _: Clock) -> None:
        lose_replies(bench)
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench)
        bench.executors[0].say(Failed(job_id, "invalid-input", "No.", 0.1))
        assert isinstance(bench.told(job_id), Error)
        mend(bench)
        await bench.ledger.until(lambda: not bench.handovers.settling.count())
        assert bench.ledger.rows[job_id].state == "failed"

    run(scenario)
