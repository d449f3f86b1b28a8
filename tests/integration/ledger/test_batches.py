"""Batches in the ledger: all or nothing, once, and in nobody's way."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from harness.batches import LONG, Gate, inputs, new_batch, parts, pools, record
from harness.ledger import (
    LANE,
    Runner,
    check_ledger,
    make_owner,
    state,
    story,
    submit_many,
    submit_one,
    until_blocked,
)
from harness.postgres import terminate

from headrace.errors import DatabaseError, DatabaseUnavailable
from headrace.ids import uuid7
from headrace.ledger import batches, reading
from headrace.ledger.batches import BatchReceipt, submit_batch


def test_batch_is_recorded_whole_and_in_order(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner = await make_owner(database)
            await submit_many(database, owner, 2)
            batch = new_batch(
                owner,
                10,
                costs=[1.0, 3.0] * 5,
                weight=2.0,
                key_id=uuid7(),
                request_id="r",
                traceparent="00-t",
            )
            ids = [uuid7() for _ in range(10)]
            receipt = await submit_batch(long, database, batch, parts(inputs(10), 4, ids))
            assert (receipt.batch_id, receipt.refusal, receipt.outstanding) == (batch.batch_id, None, 2)
            rows = await database.fetch(
                "SELECT *, id::text AS id, extract(epoch FROM queue_deadline_at - created_at) AS queue_s,"
                " extract(epoch FROM deadline_at - created_at) AS total_s FROM job"
                " WHERE batch_id = %s::uuid ORDER BY batch_index",
                [batch.batch_id],
            )
            assert [(row["id"], row["batch_index"], row["input"]) for row in rows] == [
                (ids[n], n, b'{"n": %d}' % n) for n in range(10)
            ]
            for row in rows:
                assert (row["queue_s"], row["total_s"], row["attempts"]) == (60, 600, 2)
                assert (row["request_id"], row["traceparent"]) == ("r", "00-t")
                assert row["created_at"] == receipt.created_at
            tags = [row["tag"] for row in rows]
            steps = [after - before for before, after in itertools.pairwise(tags)]
            assert steps == [0.5, 1.5] * 4 + [0.5]
            assert await story(database, ids[3]) == [
                ("queued", 0, f"key:{batch.key_id}", f"submitted in batch {batch.batch_id}")
            ]
            following = await submit_one(database, owner, weight=2.0)
            assert (await database.fetch("SELECT tag FROM job WHERE id = %s::uuid", [following]))[0][
                "tag"
            ] == (tags[-1] + 1.5)
            runner = Runner(database)
            claimed = [job.job_id for job in await runner.claim(20)]
            assert [job_id for job_id in claimed if job_id in ids] == ids
            await check_ledger(database)

    asyncio.run(scenario())


def test_jobs_of_a_batch_are_found_by_it(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner, other = await make_owner(database), await make_owner(database)
            made = [new_batch(owner, 4)]
            made += [new_batch(one, 2, function="crab") for one in (owner, other)]
            for batch in made:
                await record(long, database, batch)
            first, second, _ = (batch.batch_id for batch in made)

            found = await batches.find(database, first, owner)
            assert found is not None
            assert (found.function, found.size, found.is_running) == (LANE, 4, True)
            assert await batches.find(database, first, other) is None
            assert [one.batch_id for one in await batches.list_batches(database, owner, None, 5)] == [
                second,
                first,
            ]
            assert [one.batch_id for one in await batches.list_batches(database, owner, second, 5)] == [first]
            listed = await reading.list_jobs(database, owner, batch_id=first)
            assert [(job.batch_id, job.batch_index) for job in listed] == [(first, n) for n in (3, 2, 1, 0)]

            runner = Runner(database)
            jobs = {job.job_id: job for job in await runner.claim(3)}
            for job, kind in zip(list(jobs.values())[:2], ("succeeded", "failed"), strict=True):
                await runner.end(job, kind)  # type: ignore[arg-type]
            assert await batches.counts(database, first) == {
                "succeeded": 1,
                "failed": 1,
                "running": 1,
                "queued": 1,
            }
            results = await batches.results(database, first, -1, 3)
            assert [(one.batch_index, one.state) for one in results] == [
                (0, "succeeded"),
                (1, "failed"),
                (2, "running"),
            ]
            assert [(one.small_result, one.error_category) for one in results] == [
                (b'"done"', None),
                (None, "broken"),
                (None, None),
            ]
            assert [one.batch_index for one in await batches.results(database, first, 2, 3)] == [3]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("bounds", "refusal"),
    [
        ({"most_outstanding": 7}, "quota-exceeded"),
        ({"most_outstanding": 8}, None),
        ({"most_waiting": 7}, "backlog-full"),
        ({"most_waiting": 8}, None),
        ({"most_waiting": 3}, "backlog-full"),
        ({"most_cost": 7.5}, "backlog-costly"),
        ({"most_cost": 8.0}, None),
        ({"most_age_s": 1e-6}, "backlog-old"),
    ],
)
def test_all_of_a_batch_must_fit(database_url: str, bounds: dict[str, Any], refusal: str | None) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner = await make_owner(database)
            await submit_many(database, owner, 3)
            batch = new_batch(owner, 5, idempotency_key="k", **bounds)
            receipt = await record(long, database, batch)
            assert (receipt.refusal, receipt.outstanding) == (refusal, 3)
            assert len(await check_ledger(database)) == (3 if refusal else 8)
            if refusal:  # a refusal isn't remembered
                assert await batches.find(database, batch.batch_id, owner) is None
                again = new_batch(owner, 5, idempotency_key="k", digest=b"e" * 32)
                assert (await record(long, database, again)).refusal is None

    asyncio.run(scenario())


def test_bad_job_fails_its_batch_whole(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner = await make_owner(database)
            bad = parts(inputs(5), 2, [*(uuid7() for _ in range(4)), await submit_one(database, owner)])
            with pytest.raises(DatabaseError):
                await submit_batch(long, database, new_batch(owner, 5), bad)
            assert len(await check_ledger(database)) == 1

    asyncio.run(scenario())


def test_repeated_batch_is_there_once(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner, other = await make_owner(database), await make_owner(database)
            batch = new_batch(owner, 4, idempotency_key="k")
            await record(long, database, batch)
            repeated = await record(long, database, batch)
            assert repeated == BatchReceipt(batch_id=batch.batch_id)
            replayed = await record(long, database, new_batch(owner, 4, idempotency_key="k"))
            assert replayed == BatchReceipt(batch_id=batch.batch_id, is_replay=True)
            conflict = await record(
                long, database, new_batch(owner, 4, idempotency_key="k", digest=b"e" * 32)
            )
            assert conflict == BatchReceipt(batch_id=batch.batch_id, refusal="key-conflict")
            assert len(await check_ledger(database)) == 4
            for free in (
                new_batch(other, 1, idempotency_key="k"),
                new_batch(owner, 1, idempotency_key="k", function="crab"),
                new_batch(owner, 1, idempotency_key="l"),
            ):
                assert (await record(long, database, free)).created_at is not None
            alone = await submit_one(database, owner, idempotency_key="k", digest=b"f" * 32)
            assert await state(database, alone) == "queued"  # a call's keys are others than a batch's

    asyncio.run(scenario())


def test_batches_of_one_key_at_once_are_one(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner = await make_owner(database)
            made = [new_batch(owner, 6, idempotency_key="k") for _ in range(4)]
            receipts = await asyncio.gather(*(record(long, database, batch) for batch in made))
            assert len({receipt.batch_id for receipt in receipts}) == 1
            assert sorted(receipt.is_replay for receipt in receipts) == [False, True, True, True]
            assert len(await check_ledger(database)) == 6

    asyncio.run(scenario())


def test_batches_of_one_owner_at_once_keep_its_bound(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner = await make_owner(database)
            made = [new_batch(owner, 5, most_outstanding=12) for _ in range(4)]
            receipts = await asyncio.gather(*(record(long, database, batch) for batch in made))
            assert (
                sorted(str(receipt.refusal) for receipt in receipts) == ["None"] * 2 + ["quota-exceeded"] * 2
            )
            assert len(await check_ledger(database)) == 10

    asyncio.run(scenario())


def test_batch_under_way_is_in_nobodys_way(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner, other = await make_owner(database), await make_owner(database)
            (waiting,) = await submit_many(database, owner, 1)
            gate, batch = Gate(9), new_batch(owner, 9)
            recording = asyncio.create_task(submit_batch(long, database, batch, gate.parts()))
            await gate.began.wait()
            async with asyncio.timeout(5):
                runner = Runner(database)
                assert [job.job_id for job in await runner.claim(9)] == [waiting]
                await submit_one(database, other)
                await submit_one(database, owner)
                await record(long, database, new_batch(other, 2))
                assert len(await runner.claim(9)) == 4
                second = asyncio.create_task(record(long, database, new_batch(owner, 1)))
                await until_blocked(database, 1)  # only the owner's own next batch waits
            assert await batches.find(database, batch.batch_id, owner) is None
            gate.opened.set()
            assert (await recording).refusal is None
            assert (await second).outstanding == 11
            await check_ledger(database)

    asyncio.run(scenario())


def test_what_is_lost_before_its_commit_leaves_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner = await make_owner(database)
            gate, batch = Gate(9), new_batch(owner, 9, idempotency_key="k")
            recording = asyncio.create_task(submit_batch(long, database, batch, gate.parts()))
            await gate.began.wait()
            assert terminate(database_url, LONG) >= 1
            gate.opened.set()
            with pytest.raises(DatabaseUnavailable):
                await recording
            assert await check_ledger(database) == {}
            assert await database.fetch("SELECT FROM batch UNION ALL SELECT FROM idempotency") == []
            assert (await record(long, database, batch)).created_at is not None
            assert len(await check_ledger(database)) == 9

    asyncio.run(scenario())


def test_cancelled_recording_leaves_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner = await make_owner(database)
            gate = Gate(9)
            recording = asyncio.create_task(submit_batch(long, database, new_batch(owner, 9), gate.parts()))
            await gate.began.wait()
            recording.cancel()
            with pytest.raises(asyncio.CancelledError):
                await recording
            assert (await record(long, database, new_batch(owner, 2))).created_at is not None
            assert len(await check_ledger(database)) == 2

    asyncio.run(scenario())


def test_cancelling_a_batch_ends_what_is_not_finished(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner, other = await make_owner(database), await make_owner(database)
            batch, kept = new_batch(owner, 600), new_batch(owner, 1)
            await record(long, database, batch)
            await record(long, database, kept)
            runner = Runner(database)
            done, running = await runner.claim(2)
            await runner.end(done)
            await batches.cancel_batch(database, batch.batch_id, other, "key:x")
            assert await batches.counts(database, batch.batch_id) == {
                "succeeded": 1,
                "running": 1,
                "queued": 598,
            }
            await batches.cancel_batch(database, batch.batch_id, owner, "key:x")
            assert await batches.counts(database, batch.batch_id) == {
                "succeeded": 1,
                "cancel_requested": 1,
                "cancelled": 598,
            }
            await batches.cancel_batch(database, batch.batch_id, None, "key:x")
            assert await runner.end(running) == "cancelled"
            found = await batches.find(database, batch.batch_id, owner)
            assert found is not None
            assert not found.is_running
            assert await batches.counts(database, kept.batch_id) == {"queued": 1}
            audited = await database.fetch("SELECT actor, action, subject, detail FROM audit ORDER BY id")
            assert audited == [
                {
                    "actor": "key:x",
                    "action": "batch.cancel",
                    "subject": batch.batch_id,
                    "detail": {"jobs": 599},
                }
            ]
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_cancel_waits_for_the_claim_that_came_first(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner = await make_owner(database)
            batch = new_batch(owner, 5)
            await record(long, database, batch)
            async with database.transaction() as claim:
                (first,) = await claim.fetch("SELECT id::text FROM job ORDER BY id LIMIT 1 FOR UPDATE")
                cancelling = asyncio.create_task(
                    batches.cancel_batch(database, batch.batch_id, owner, "key:x")
                )
                await until_blocked(database, 1)
            await cancelling
            assert await story(database, first["id"]) == [
                ("queued", 0, f"owner:{owner}", f"submitted in batch {batch.batch_id}"),
                ("cancelled", 0, "key:x", "cancelled while it waited"),
            ]
            assert await batches.counts(database, batch.batch_id) == {"cancelled": 5}
            await check_ledger(database)

    asyncio.run(scenario())
