"""Rows that somebody keeps locked: whoever moves other jobs doesn't wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import psycopg
import pytest
from harness.ledger import (
    LANE,
    Runner,
    check_ledger,
    elapse,
    make_owner,
    new_job,
    opened,
    outcome,
    state,
    submit_many,
    submit_one,
)

from headrace.errors import DatabaseError, DatabaseUnavailable
from headrace.ledger import settling
from headrace.ledger.submission import submit


@asynccontextmanager
async def locked(url: str, statement: str, *parameters: object) -> AsyncGenerator[None]:
    """Somebody's transaction that has done this and isn't ended."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(statement.encode(), parameters)
        yield
        await connection.rollback()


def test_a_locked_job_costs_no_other_its_lease(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_many(database, await make_owner(database), 3)
            runner = Runner(database)
            jobs = await runner.claim(3)
            await elapse(database, 20)
            async with locked(database_url, "SELECT FROM job WHERE id = %s FOR UPDATE", jobs[1].job_id):
                async with asyncio.timeout(5):
                    renewal = await runner.renew(*jobs)
                assert (renewal.busy, renewal.lost) == ([jobs[1].job_id], [])
            await elapse(database, 15)
            settled = await settling.settle(database, "gateway:test")
            assert settled is not None
            assert settled.requeued == 1
            assert [await state(database, job.job_id) for job in jobs] == ["running", "queued", "running"]
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_locked_job_that_is_another_runners_by_now_is_lost(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_one(database, await make_owner(database))
            runner, other = Runner(database), Runner(database)
            job = await runner.claim_one()
            await runner.end(job, "returned")
            again = await other.claim_one()
            async with locked(database_url, "SELECT FROM job WHERE id = %s FOR UPDATE", job.job_id):
                renewal = await runner.renew(job)
                assert (renewal.busy, renewal.lost) == ([], [job.job_id])
                assert (await other.renew(again)).busy == [job.job_id]

    asyncio.run(scenario())


def test_a_locked_job_is_an_error_of_its_batch_in_time(database_url: str) -> None:
    """Not an outage: whoever finishes sends the others without it."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_many(database, await make_owner(database), 2)
            runner = Runner(database)
            jobs = await runner.claim(2)
            async with locked(database_url, "SELECT FROM job WHERE id = %s FOR UPDATE", jobs[0].job_id):
                async with asyncio.timeout(5):
                    with pytest.raises(DatabaseError) as caught:
                        await runner.finish(*(outcome(job, output=b"1") for job in jobs))
                assert not isinstance(caught.value, DatabaseUnavailable)
                assert await runner.finish(outcome(jobs[1], output=b"1")) == {jobs[1].job_id: "succeeded"}
            assert await runner.finish(outcome(jobs[0], output=b"1")) == {jobs[0].job_id: "succeeded"}

    asyncio.run(scenario())


def test_a_locked_lane_stops_no_maintenance(database_url: str) -> None:
    """A claim whose reply isn't read keeps its lane's row."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 501)
            await submit_one(database, owner, function="other", queue_s=1.0)
            await elapse(database, 2)
            async with locked(database_url, "SELECT FROM lane WHERE name = %s FOR NO KEY UPDATE", LANE):
                async with asyncio.timeout(5):
                    settled = await settling.settle(database, "gateway:test")
                    assert settled is not None
                    assert settled.expired == 1
                    assert await settling.count(database, with_cost=False)
            assert await settling.count(database, with_cost=False)
            waiting = await database.fetch("SELECT waiting FROM lane WHERE name = %s", [LANE])
            assert waiting == [{"waiting": 501}]

    asyncio.run(scenario())


def test_owners_with_many_jobs_are_counted_in_one_order(database_url: str) -> None:
    """Two submissions for the same owners, in opposite orders, while neither owner has been counted."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            many = {"most_waiting": 100_000}
            for _ in range(4):
                owners = [await make_owner(database) for _ in range(6)]
                for owner in owners:
                    await submit_many(database, owner, 501, **many)
                batches = [
                    [
                        new_job(owner, **many)
                        for owner in (owners if forwards else owners[::-1])
                        for _ in range(count)
                    ]
                    for forwards, count in ((True, 1), (False, 35))
                ]
                receipts = await asyncio.gather(*(submit(database, batch) for batch in batches))
                assert {one.outcome for batch in receipts for one in batch} == {"accepted"}

    asyncio.run(scenario())
