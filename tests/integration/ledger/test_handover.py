"""Calls that become jobs while they run: born `running`, under the start that they have."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
from harness.ledger import (
    INTERFACE,
    Runner,
    check_ledger,
    elapse,
    make_owner,
    new_call,
    new_job,
    opened,
    queue,
    row,
    start_of,
    story,
    submission_of,
    submit_many,
    submit_one,
)

from headrace.ledger import cancelling, execution, reading, settling
from headrace.ledger.execution import Report
from headrace.ledger.handover import Recorded
from headrace.ledger.submission import submit

KEPT = "SELECT unfinished FROM owner_load WHERE owner_id = %s::uuid"


def seconds(one: Any, other: Any) -> float:
    return (one - other).total_seconds()


def test_a_call_is_recorded_as_it_runs(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, key_id = Runner(database), str(uuid.uuid4())
            call = new_call(
                await make_owner(database),
                input=b'{"\\u0000": 1}',
                key_id=key_id,
                cost=7.0,
                weight=4.0,
                attempts=5,
                attempt=3,
                charged=2,
                request_id="r",
                traceparent="t",
            )
            records = await runner.hand_over(call)
            job = await row(database, call.job_id)
            assert records == {
                call.job_id: Recorded(
                    job_id=call.job_id,
                    verdict="committed",
                    state="running",
                    created_at=job["created_at"],
                    queue_deadline_at=job["queue_deadline_at"],
                    deadline_at=job["deadline_at"],
                )
            }
            names = set(call.__struct_fields__) & job.keys() - {"job_id", "key_id"}
            assert {"token", "attempt", "charged", "attempts", "cost", "weight", "digest"} < names
            for name in names:
                assert job[name] == getattr(call, name), name
            assert (str(job["key_id"]), job["session_id"]) == (key_id, runner.session_id)
            assert (job["state"], job["entry_id"], job["alone"], job["result"]) == (
                "running",
                None,
                False,
                None,
            )
            assert job["first_started_at"] == job["started_at"]
            assert seconds(job["started_at"], job["created_at"]) == 1
            assert seconds(job["deadline_at"], job["started_at"]) == 602
            assert seconds(job["queue_deadline_at"], job["created_at"]) == 60
            assert seconds(job["lease_expires_at"], job["started_at"]) == 32
            assert job["settle_at"] == job["lease_expires_at"]
            assert await story(database, call.job_id) == [("running", 3, runner.actor, "handed over")]
            assert not await queue(database)
            await check_ledger(database)

    asyncio.run(scenario())


def test_its_runner_keeps_and_ends_it_as_any_job(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            call = new_call(await make_owner(database))
            start = start_of(call)
            await runner.hand_over(call)
            assert await runner.renew(start) == execution.Renewal(lost=[], cancelled=[], given_back=0)
            await execution.progress(database, [Report(call.job_id, call.token, 1, 0.5, "half")])
            assert await runner.add_items(start, 0, b"1") == "written"
            assert await runner.end(start, output=b'"done"') == "succeeded"
            job = await reading.find(database, call.job_id, call.owner_id)
            assert job is not None
            assert (job.state, job.attempt, job.progress) == ("succeeded", 1, 0.5)
            assert job.small_result == b'"done"'
            assert await runner.end(start) == "succeeded"  # its reply was lost
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_call_that_is_past_its_times_is_recorded_too(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            late = new_call(owner, remaining_s=-1.0, queue_s=9.0)
            tight = new_call(owner, remaining_s=5.0, queue_s=60.0)
            records = await runner.hand_over(late, tight)
            assert {record.verdict for record in records.values()} == {"committed"}
            assert seconds(records[late.job_id].deadline_at, records[late.job_id].created_at) == 3
            ends = records[tight.job_id]
            assert ends.queue_deadline_at == ends.deadline_at
            assert (await row(database, tight.job_id))["settle_at"] == ends.deadline_at
            assert await runner.end(start_of(late)) == "failed"
            assert (await row(database, late.job_id))["error_category"] == "deadline-exceeded"
            await check_ledger(database)

    asyncio.run(scenario())


# -------------------------------------------------------------------- sent again, and fenced


def test_what_is_sent_again_is_answered_as_at_first_and_keeps_its_lease(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            calls = [new_call(owner) for _ in range(2)]
            first = await runner.hand_over(calls[0])
            await elapse(database, 25)
            again = await runner.hand_over(*(msgspec.structs.replace(call, elapsed_s=27.0) for call in calls))
            assert {record.verdict for record in again.values()} == {"committed"}
            assert seconds(first[calls[0].job_id].created_at, again[calls[0].job_id].created_at) == 25
            await elapse(database, 10)
            await settling.settle(database, "gateway:g")
            jobs = await check_ledger(database)
            assert {job["state"] for job in jobs.values()} == {"running"}
            assert [len(await story(database, call.job_id)) for call in calls] == [1, 1]

    asyncio.run(scenario())


def test_an_answer_tells_how_the_start_stands_by_now(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            done, cancelled, taken = calls = [new_call(owner) for _ in range(3)]
            await runner.hand_over(*calls)
            await runner.end(start_of(done))
            await cancelling.cancel(database, cancelled.job_id, owner, "key:k")
            await runner.end(start_of(taken), "displaced")
            again = await runner.hand_over(*calls)
            assert [(again[call.job_id].verdict, again[call.job_id].state) for call in calls] == [
                ("committed", "succeeded"),
                ("committed", "cancel_requested"),
                ("fenced", "queued"),
            ]
            assert (await row(database, done.job_id))["lease_expires_at"] is None
            other = await Runner(database).claim_one()
            again = await runner.hand_over(taken)
            assert (again[taken.job_id].verdict, again[taken.job_id].state) == ("fenced", "running")
            assert (await row(database, taken.job_id))["token"] == other.token
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_call_that_was_submitted_meanwhile_is_fenced_and_others_are_not(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            calls = [new_call(owner) for _ in range(3)]
            await submit(database, [submission_of(calls[1])])
            before = await row(database, calls[1].job_id)
            records = await runner.hand_over(*calls)
            assert [records[call.job_id].verdict for call in calls] == ["committed", "fenced", "committed"]
            assert await row(database, calls[1].job_id) == before
            assert await runner.end(start_of(calls[1])) is None
            assert len(await check_ledger(database)) == 3

    asyncio.run(scenario())


def test_a_call_whose_link_was_lost_is_a_replay_where_it_is_recorded(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            call = new_call(await make_owner(database))
            await Runner(database).hand_over(call)
            (receipt,) = await submit(database, [submission_of(call)])
            assert (receipt.outcome, receipt.state) == ("replayed", "running")
            assert not await queue(database)
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_handover_whose_reply_was_lost_is_given_back_by_a_renewal_that_does_not_name_it(
    database_url: str,
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, claim_id = Runner(database), str(uuid.uuid4())
            call = new_call(await make_owner(database))
            await runner.hand_over(call, claim_id=claim_id)
            assert (await runner.renew(claiming=[claim_id])).given_back == 0
            assert (await row(database, call.job_id))["state"] == "running"
            assert (await runner.renew(claiming=[str(uuid.uuid4())])).given_back == 1
            assert (await runner.hand_over(call, claim_id=claim_id))[call.job_id].verdict == "fenced"
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_runner_that_is_lost_loses_what_it_handed_over(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            last, again = new_call(owner, attempts=1), new_call(owner)
            await runner.hand_over(last, again)
            marks = await settling.session_marks(database, [runner.session_id])
            mark = marks[runner.session_id]
            assert mark is not None
            assert await settling.reap_session(database, runner.session_id, mark, "gateway:g") == 2
            jobs = await check_ledger(database)
            assert jobs[last.job_id]["error_category"] == "attempts-exhausted"
            assert jobs[again.job_id]["state"] == "queued"
            await elapse(database, 2)
            start = await Runner(database).claim_one()
            assert (start.job_id, start.attempt, start.charged) == (again.job_id, 2, 2)
            assert (await runner.hand_over(again))[again.job_id].verdict == "fenced"

    asyncio.run(scenario())


# -------------------------------------------------------------------- bounds, order, locks


def test_no_bound_refuses_a_call_that_runs_and_it_counts_as_its_owners(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            await submit_one(database, owner, most_outstanding=1)
            records = await runner.hand_over(new_call(owner), new_call(owner))
            assert {record.verdict for record in records.values()} == {"committed"}
            (refused,) = await submit(database, [new_job(owner, most_outstanding=3)])
            assert (refused.outcome, refused.outstanding) == ("quota-exceeded", 3)
            await submit_many(database, owner, 600)
            await submit_one(database, owner)  # now they are kept in mind
            (kept,) = await database.fetch(KEPT, [owner])
            known = new_call(owner)
            await runner.hand_over(known, new_call(owner), new_call(await make_owner(database)))
            await runner.hand_over(known)
            assert await database.fetch(KEPT, [owner]) == [{"unfinished": kept["unfinished"] + 2}]

    asyncio.run(scenario())


def test_a_call_that_must_wait_again_is_before_what_waits_already_and_delays_nobody(
    database_url: str,
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            waiting = await submit_many(database, owner, 4)
            started = [await runner.claim_one() for _ in range(2)]
            assert [start.job_id for start in started] == waiting[:2]
            call = new_call(owner, cost=100.0)
            await runner.hand_over(call)
            await runner.end(start_of(call), "returned")
            behind = await submit_one(database, owner)
            claimed = [(await runner.claim_one()).job_id for _ in range(4)]
            assert claimed == [call.job_id, waiting[2], waiting[3], behind]
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_new_lane_and_a_new_owner_are_no_obstacle(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            calls = [
                new_call(await make_owner(database), function=function, weight=weight)
                for function in ("b", "a")
                for weight in (2.0, 0.5)
            ]
            records = await runner.hand_over(*calls)
            assert list(records) == [call.job_id for call in calls]
            assert {record.verdict for record in records.values()} == {"committed"}
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_recorded_call_is_of_its_interface(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            call = new_call(await make_owner(database), interface="i0")
            await runner.hand_over(call)
            await runner.end(start_of(call), "returned")
            assert await runner.claim(interface=INTERFACE) == []
            assert [start.job_id for start in await runner.claim(interface="i0")] == [call.job_id]

    asyncio.run(scenario())
