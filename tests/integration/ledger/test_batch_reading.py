"""What is asked about batches: the room before one, and how one stands once what is overdue was moved."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from harness.batches import new_batch, pools, record
from harness.ledger import LANE, Runner, check_ledger, elapse, make_owner, state, story, submit_many

from headrace.ledger import batches
from headrace.ledger.batches import Room
from headrace.ledger.retrying import Bounds

G = "gateway:g"


def test_reading_a_batch_settles_its_overdue_jobs(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner, other = await make_owner(database), await make_owner(database)
            batch = new_batch(owner, 4, queue_s=10.0, total_s=10.0)
            await record(long, database, batch)
            await Runner(database).claim_one()
            neighbours = await submit_many(database, owner, 1, queue_s=10.0)
            await elapse(database, 10)
            assert await batches.find(database, batch.batch_id, other) is None
            assert (await batches.counts(database, batch.batch_id)) == {"queued": 3, "running": 1}

            # What another one is about to move is left to it, and not waited for.
            async with await psycopg.AsyncConnection.connect(database_url) as elsewhere:
                held = await elsewhere.execute(
                    "SELECT id::text FROM job WHERE batch_id = %s AND batch_index = 3 FOR UPDATE",
                    [batch.batch_id],
                )
                last = (await held.fetchall())[0][0]
                async with asyncio.timeout(5):
                    found = await batches.find(database, batch.batch_id, owner, actor=G)
                assert found is not None
                assert found.is_running
            counts = await batches.counts(database, batch.batch_id)
            assert counts == {"queued": 1, "expired": 2, "failed": 1}
            found = await batches.find(database, batch.batch_id, owner, actor=G)
            assert found is not None
            assert (found.is_running, found.is_overdue) == (False, False)
            assert (await story(database, last))[-1][2] == G
            assert await state(database, neighbours[0]) == "queued"

            monkeypatch.setattr(batches, "_AT_ONCE", 2)
            large = new_batch(owner, 3, queue_s=10.0)
            await record(long, database, large)
            await elapse(database, 10)
            found = await batches.find(database, large.batch_id, owner)
            assert found is not None
            assert (found.is_running, found.is_overdue) == (True, True)
            assert await batches.counts(database, large.batch_id) == {"queued": 1, "expired": 2}
            await check_ledger(database)

    asyncio.run(scenario())


def test_reading_a_batch_leaves_leases_to_maintenance(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner = await make_owner(database)
            batch = new_batch(owner, 2)
            await record(long, database, batch)
            await Runner(database, lease_s=30).claim_one()
            await elapse(database, 31)
            found = await batches.find(database, batch.batch_id, owner)
            assert found is not None
            assert not found.is_overdue
            assert await batches.counts(database, batch.batch_id) == {"queued": 1, "running": 1}

    asyncio.run(scenario())


def test_the_room_is_told_with_the_bounds_in_force(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (_, database):
            owner, other = await make_owner(database), await make_owner(database)
            site = Bounds(most_outstanding=3, most_waiting=5, most_cost=50.0)
            await submit_many(database, owner, 4)

            async def room(owner: str) -> Room:
                return await batches.room(database, owner, LANE, site)

            assert await room(other) == Room(outstanding=0, refusal=None, most_waiting=5, most_cost=50.0)
            assert (await room(owner)).outstanding == 3  # as far as it counts
            empty = await batches.room(database, other, "crab", Bounds(most_outstanding=3, most_waiting=5))
            assert empty == Room(outstanding=0, refusal=None, most_waiting=5, most_cost=None)
            await submit_many(database, other, 1)
            assert (await room(other)).refusal == "backlog-full"
            await database.execute("UPDATE lane SET most_waiting = 9, most_cost = 5 WHERE name = %s", [LANE])
            told = Room(outstanding=1, refusal="backlog-costly", most_waiting=9, most_cost=5.0)
            assert await room(other) == told

    asyncio.run(scenario())
