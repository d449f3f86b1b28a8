from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from datetime import timedelta

import pytest
from harness.ledger import (
    LANE,
    Runner,
    check_ledger,
    make_owner,
    new_job,
    opened,
    queue,
    row,
    story,
    submit_many,
    submit_one,
)

from headrace.errors import DatabaseError
from headrace.ledger.submission import submit


def test_receipts_come_in_the_order_of_the_jobs(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owners = [await make_owner(database) for _ in range(2)]
            jobs = [
                new_job(owners[n % 2], function=f"f{n % 3}", total_s=100.0 + n, queue_s=10.0 + n)
                for n in range(30)
            ]
            jobs = jobs[::-1]
            receipts = await submit(database, jobs)
            assert [receipt.job_id for receipt in receipts] == [job.job_id for job in jobs]
            for job, receipt in zip(jobs, receipts, strict=True):
                assert (receipt.outcome, receipt.state) == ("accepted", "queued")
                assert receipt.created_at is not None
                assert receipt.deadline_at == receipt.created_at + timedelta(seconds=job.total_s)
                assert receipt.queue_deadline_at == receipt.created_at + timedelta(seconds=job.queue_s)
            assert [receipt.outstanding for receipt in receipts] == [n // 2 for n in range(30)]
            await check_ledger(database)

    asyncio.run(scenario())


def test_nothing_to_submit_is_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            assert await submit(database, []) == []
            assert await check_ledger(database) == {}

    asyncio.run(scenario())


def test_what_is_kept_of_a_job(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, key, gateway = await make_owner(database), str(uuid.uuid4()), str(uuid.uuid4())
            job_id = await submit_one(
                database,
                owner,
                key_id=key,
                request_id="r",
                traceparent="00-t",
                idempotency_key="k",
                waiter=gateway,
                cost=3.0,
                weight=2.0,
                attempts=7,
                digest=b"d" * 32,
            )
            kept = await row(database, job_id)
            assert {
                "owner_id": owner,
                "function": LANE,
                "interface": "i1",
                "request_id": "r",
                "traceparent": "00-t",
                "idempotency_key": "k",
                "waiters": [gateway],
                "followed": False,
                "cost": 3.0,
                "weight": 2.0,
                "attempts": 7,
                "attempt": 0,
                "charged": 0,
                "sequence": 1,
                "digest": b"d" * 32,
                "due_at": None,
                "token": None,
            }.items() <= kept.items()
            assert kept["settle_at"] == kept["queue_deadline_at"]
            assert await story(database, job_id) == [("queued", 0, f"key:{key}", "submitted")]
            nobodys = await submit_one(database, owner)
            assert await story(database, nobodys) == [("queued", 0, f"owner:{owner}", "submitted")]
            assert (await row(database, nobodys))["waiters"] == []

    asyncio.run(scenario())


def test_call_that_was_lost_on_its_direct_path_has_had_its_start(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            job_id = await submit_one(database, owner, attempt=1, charged=1, attempts=2, queue_s=1.0)
            kept = await row(database, job_id)
            assert kept["settle_at"] == kept["deadline_at"]
            assert [event[:2] + event[3:] for event in await story(database, job_id)] == [
                ("queued", 1, "lost on the direct path")
            ]
            runner = Runner(database)
            claimed = await runner.claim_one()
            assert claimed.attempt == 2
            assert await runner.end(claimed, "retry") == "failed"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff\x00",
        rb'{"b": "\u0000", "a": 1.0, "a": 1e2, "\ud800": "\\u0000"}',
        bytes(range(256)) * 4096,
        "ä\u2028".encode(),
    ],
    ids=["empty", "NUL", "JSON that jsonb refuses", "1 MiB", "not ASCII"],
)
def test_input_is_kept_to_the_byte(database_url: str, body: bytes) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            job_id = await submit_one(database, owner, input=body)
            assert (await row(database, job_id))["input"] == body
            assert (await Runner(database).claim_one()).input == body

    asyncio.run(scenario())


def test_bad_job_fails_its_batch_whole(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            good = [new_job(owner, idempotency_key=f"k{n}") for n in range(3)]
            for bad in (
                new_job(str(uuid.uuid4())),
                new_job(owner, total_s=1.0, queue_s=2.0),
                new_job(owner, attempts=1, attempt=1, charged=1),
                new_job(owner, function="Not A Lane"),
                new_job(owner, cost=float("nan")),
                new_job(owner, cost=float("inf")),
                new_job(owner, weight=float("nan")),
                new_job(owner, weight=0.0),
            ):
                with pytest.raises(DatabaseError):
                    await submit(database, [good[0], bad, *good[1:]])
            assert await check_ledger(database) == {}
            assert await database.fetch("SELECT FROM lane UNION ALL SELECT FROM idempotency") == []
            assert {receipt.outcome for receipt in await submit(database, good)} == {"accepted"}

    asyncio.run(scenario())


def test_quota_counts_what_is_unfinished_within_and_across_batches(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, other = await make_owner(database), await make_owner(database)
            batch = [new_job(one, most_outstanding=3) for one in (owner, other, owner, owner, owner, owner)]
            receipts = await submit(database, batch)
            refused = "quota-exceeded"
            assert [one.outcome for one in receipts] == ["accepted"] * 4 + [refused] * 2
            assert [one.outstanding for one in receipts] == [0, 0, 1, 2, 3, 3]
            assert (receipts[-1].state, receipts[-1].created_at) == (None, None)
            assert receipts[-1].job_id == batch[-1].job_id
            assert len(await check_ledger(database)) == 4

            async def accepted(most: int) -> str:
                return (await submit(database, [new_job(owner, most_outstanding=most)]))[0].outcome

            assert await accepted(3) == refused
            runner = Runner(database)
            first, *_ = await runner.claim(1)
            assert await accepted(3) == refused
            await runner.end(first)
            owners = Counter(
                job["owner_id"] for job in await database.fetch("SELECT owner_id::text FROM job")
            )
            assert await accepted(2) == refused
            assert await accepted(owners[owner]) == "accepted"

    asyncio.run(scenario())


def test_backlog_counts_what_waits_in_the_lane(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owners = [await make_owner(database) for _ in range(2)]
            batch = [new_job(owners[n % 2], most_waiting=3) for n in range(5)]
            batch.insert(0, new_job(owners[0], function="other", most_waiting=3))
            outcomes = [one.outcome for one in await submit(database, batch)]
            assert outcomes == ["accepted"] * 4 + ["backlog-full"] * 2
            assert len(await check_ledger(database)) == 4

            async def outcome() -> str:
                return (await submit(database, [new_job(owners[0], most_waiting=3)]))[0].outcome

            assert await outcome() == "backlog-full"
            await Runner(database).claim_one()
            assert await outcome() == "accepted"
            assert await outcome() == "backlog-full"

    asyncio.run(scenario())


def test_what_one_bound_refuses_takes_no_room_of_the_other(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, other = await make_owner(database), await make_owner(database)
            await submit_many(database, other, 2)

            def full(owner_id: str) -> dict[str, object]:
                return {"owner_id": owner_id, "most_waiting": 2, "most_outstanding": 3}

            batch = [new_job(**full(owner)) for _ in range(3)]
            batch += [new_job(owner, function="empty", most_outstanding=3) for _ in range(4)]
            outcomes = [one.outcome for one in await submit(database, batch)]
            assert outcomes == ["backlog-full"] * 3 + ["accepted"] * 3 + ["quota-exceeded"]

    asyncio.run(scenario())


def test_entry_is_bare(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            jobs = await submit_many(database, await make_owner(database), 50)
            entries = await queue(database)
            assert [entry["args"] for entry in entries] == [{"job_id": job_id, "v": 1} for job_id in jobs]
            for entry in entries:
                assert (entry["queue_name"], entry["task_name"]) == (LANE, "headrace.run")
                assert (entry["status"], entry["scheduled_at"]) == ("todo", None)
                assert (entry["lock"], entry["queueing_lock"]) == (None, None)
            await check_ledger(database)

    asyncio.run(scenario())
