from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from harness.ledger import (
    OFTEN_RETRIED,
    Runner,
    check_ledger,
    elapse,
    make_owner,
    opened,
    queue,
    submit_many,
)

from headrace.ledger.settling import Swept, sweep


@asynccontextmanager
async def open_transaction(url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection
        await connection.commit()


def test_sweep_mends_both_sides(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            healthy, no_entry, taken, retry = await submit_many(database, owner, 4, **OFTEN_RETRIED)
            for job in await runner.claim(4):
                await runner.end(job, "retry" if job.job_id == retry else "returned")
            for statement in (
                "DELETE FROM procrastinate_jobs WHERE args ->> 'job_id' = %s",
                "UPDATE procrastinate_jobs SET status = 'doing' WHERE args ->> 'job_id' = %s",
            ):
                await database.execute(statement, [no_entry if "DELETE" in statement else taken])
            await database.execute("DELETE FROM procrastinate_jobs WHERE args ->> 'job_id' = %s", [retry])
            for task in ("headrace.run", "somebody.else"):
                await database.execute(
                    "INSERT INTO procrastinate_jobs (queue_name, task_name, args)"
                    " VALUES ('fish', %s, '{\"job_id\": 3}')",
                    [task],
                )
            assert await sweep(database) == Swept(entries_deleted=1, entries_made=3)
            assert await sweep(database) == Swept(entries_deleted=0, entries_made=0)
            await check_ledger(database)
            assert {job.job_id for job in await runner.claim(9)} == {healthy, no_entry, taken}
            await elapse(database, 24)
            assert (await runner.claim_one()).job_id == retry
            assert [entry["task_name"] for entry in await queue(database)] == ["somebody.else"]

    asyncio.run(scenario())


def test_sweep_is_bounded(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 4)
            await database.execute("DELETE FROM procrastinate_jobs")
            assert await sweep(database, 3) == Swept(entries_deleted=0, entries_made=3)
            assert await sweep(database, 3) == Swept(entries_deleted=0, entries_made=1)
            await check_ledger(database)

    asyncio.run(scenario())


def test_sweep_leaves_what_is_under_way_alone(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, 8) as database:
            owner, runner = await make_owner(database), Runner(database)
            nothing = Swept(entries_deleted=0, entries_made=0)
            await submit_many(database, owner, 10)
            async with open_transaction(database_url) as other:
                # A claim that hasn't committed.
                await other.execute(
                    "SELECT claim_v1(gen_random_uuid(), gen_random_uuid(),"
                    " '{fish}', '{i1}', '{1}', '{0}', '{5}', 30, 1)"
                )
                async with asyncio.timeout(5):
                    assert await sweep(database) == nothing

            async def work() -> None:
                for _ in range(6):
                    await submit_many(database, owner, 5)
                    for job in await runner.claim(4):
                        await runner.end(job, "returned")

            working = [asyncio.ensure_future(work()) for _ in range(4)]
            while not all(task.done() for task in working):
                assert await sweep(database) == nothing
            await asyncio.gather(*working)
            await check_ledger(database)

    asyncio.run(scenario())
