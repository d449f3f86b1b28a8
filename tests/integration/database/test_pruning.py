"""The chores that prune: done by one of several gateways, and leaving nothing of their own behind."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import psycopg
import pytest
from harness.ledger import Runner, elapse, make_owner, new_job, opened, outcome, submit_many
from harness.postgres import query, wait_until

from headrace.database import Database
from headrace.ledger.submission import submit
from headrace.maintenance import pruning
from headrace.maintenance.chores import Chores
from headrace.maintenance.pruning import Pruning
from headrace.queue import worker

LEFT = (
    "SELECT (SELECT count(*) FROM job), (SELECT count(*) FROM job_event), (SELECT count(*) FROM idempotency),"
    " (SELECT count(*) FROM job WHERE result IS NOT NULL)"
)
PROCRASTINATE = (
    "SELECT (SELECT count(*) FROM procrastinate_jobs WHERE status <> 'todo'),"
    " (SELECT count(*) FROM procrastinate_events v"
    " WHERE NOT EXISTS (SELECT FROM procrastinate_jobs j WHERE j.id = v.job_id)),"
    " (SELECT count(*) FROM procrastinate_periodic_defers d"
    " WHERE (SELECT count(*) FROM procrastinate_periodic_defers e WHERE e.task_name = d.task_name) > 1)"
)


def pruner(database: Database) -> Pruning:
    return Pruning(database, job_ttl_s=4000, key_ttl_s=86_400, audit_ttl_s=86_400)


async def fill(url: str, count: int) -> None:
    """Jobs that are past their time, one that isn't, one that waits; and a key that is past its own."""
    async with opened(url) as database:
        owner, runner = await make_owner(database), Runner(database)
        await submit_many(database, owner, count)
        await runner.finish(*(outcome(job) for job in await runner.claim(count)))
        await submit(database, [new_job(owner, idempotency_key="k", queue_s=600_000, total_s=600_000)])
        await elapse(database, 90_000)
        await submit_many(database, owner, 1, cost=0.0)


def test_chores_of_two_gateways_prune_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They begin with what was due before they were started."""
    monkeypatch.setattr(worker, "POLL_EVERY", 0.05)
    caplog.set_level("INFO")

    async def scenario() -> None:
        await fill(database_url, 700)
        async with AsyncExitStack() as stack:
            databases = [await stack.enter_async_context(opened(database_url)) for _ in range(2)]
            gateways = [asyncio.create_task(Chores(one, pruner(one)).run()) for one in databases]
            try:
                assert await asyncio.to_thread(
                    wait_until, lambda: "pruned" in caplog.text and at_rest(database_url), seconds=20
                )
            finally:
                for gateway in gateways:
                    gateway.cancel()
                await asyncio.wait(gateways)

    asyncio.run(scenario())
    assert query(database_url, LEFT) == [(2, 2, 0, 0)]
    # Results went with their jobs, or before them.
    told = [message for message in caplog.messages if message.startswith("pruned 700 jobs, ")]
    assert len(told) == 1
    assert told[0].endswith(" results, 1 idempotency keys")
    assert query(database_url, PROCRASTINATE) == [(0, 0, 0)]


def at_rest(url: str) -> bool:
    return query(url, "SELECT count(*) FROM procrastinate_jobs WHERE status = 'doing'") == [(0,)]


def test_crash_in_the_middle_leaves_nothing_broken(database_url: str) -> None:
    """Each batch is a transaction: what a connection was lost in is undone, and done by the next run."""

    async def scenario() -> None:
        await fill(database_url, 30)
        async with opened(database_url) as database:
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute("SELECT prune_jobs_v2(4000, 20)")
                await other.rollback()
            assert query(database_url, LEFT) == [(32, 92, 1, 30)]
            await pruner(database).often()
        assert query(database_url, LEFT) == [(2, 2, 0, 0)]

    asyncio.run(scenario())


def test_a_run_ends_in_time_and_the_next_goes_on(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "WITHIN", 0.0)

    async def scenario() -> None:
        await fill(database_url, 30)
        async with opened(database_url) as database:
            await pruner(database).often()
            assert query(database_url, LEFT) == [(32, 92, 1, 30)]
            monkeypatch.undo()
            await pruner(database).often()
            await pruner(database).seldom()
        assert query(database_url, LEFT) == [(2, 2, 0, 0)]

    asyncio.run(scenario())
