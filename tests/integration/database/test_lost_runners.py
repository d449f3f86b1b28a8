"""Maintenance sees by the lock of a runner's session that the runner is gone, and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from harness.ledger import LANE, Runner, check_ledger, make_owner, opened, submit_many
from harness.postgres import terminate

from headrace import registry
from headrace.database import Database, Listener
from headrace.domain import RunnerInfo
from headrace.ledger.execution import Claimed
from headrace.maintenance import Maintenance
from headrace.maintenance.sessions import ABSENT_S

LISTENS = "headrace-runner-listen"
MAINTAINS = "headrace-maintenance"
# A loop's last query is a look, until the next pass; marks are only asked for of a lock that is absent.
_LOOKS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    f" AND application_name = '{MAINTAINS}' AND state = 'idle' AND query_start > %s AND strpos(query, %s) > 0"
)


class Holder:
    """The LISTEN connection of a runner, which holds its session's lock."""

    def __init__(self, url: str, session_id: str) -> None:
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self._listener = Listener(
            url,
            ["fish"],
            lambda _channel, _payload: None,
            lambda: self.events.put_nowait("connected"),
            on_lost=lambda: self.events.put_nowait("lost"),
            holds=session_id,
            application_name=LISTENS,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._listener.run())
        try:
            await self.hears("connected")
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def hears(self, event: str) -> None:
        async with asyncio.timeout(10):
            assert await self.events.get() == event


@asynccontextmanager
async def maintained(url: str, loops: int = 1) -> AsyncIterator[None]:
    made = [Maintenance(url, f"gateway:{number}", lease_s=60) for number in range(loops)]
    tasks = [asyncio.create_task(one.run()) for one in made]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)


async def running_jobs(database: Database) -> tuple[Runner, list[Claimed]]:
    """A registered runner, and two jobs of it whose leases last."""
    runner = Runner(database, lease_s=60)
    await registry.register(database, RunnerInfo(runner.session_id, None, "default", {LANE: "i1"}), [])
    await submit_many(database, await make_owner(database), 2)
    jobs = await runner.claim(2)
    assert len(jobs) == 2
    return runner, jobs


async def looked(
    database: Database, loops: int = 1, *, after_s: float = 0, what: str = "held_sessions_v1"
) -> None:
    """Each loop has looked at what is there from now on, or from so many seconds later."""
    (row,) = await database.fetch("SELECT clock_timestamp() + %s * interval '1 s' AS at", [after_s])
    async with asyncio.timeout(20 + after_s):
        while (await database.fetch(_LOOKS, [row["at"], what]))[0]["count"] < loops:
            await asyncio.sleep(0.01)


async def count(database: Database, state: str) -> int:
    return (await database.fetch("SELECT count(*) FROM job WHERE state = %s", [state]))[0]["count"]


def test_the_jobs_of_a_runner_that_is_gone_wait_again_at_once(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database, maintained(database_url, 3):
            runner, _ = await running_jobs(database)
            async with Holder(database_url, runner.session_id).running():
                await looked(database, 3)
            async with asyncio.timeout(20):
                while await count(database, "queued") != 2:
                    await asyncio.sleep(0.05)
            await check_ledger(database)
        assert caplog.text.count(f"runner {runner.session_id} was lost: 2 jobs start again") == 1

    asyncio.run(scenario())


def test_a_runner_whose_lock_is_gone_with_the_maintainers_connection_is_not_lost(database_url: str) -> None:
    """As both are when Postgres is restarted."""

    async def scenario() -> None:
        async with opened(database_url) as database, maintained(database_url):
            runner, _ = await running_jobs(database)
            async with Holder(database_url, runner.session_id).running():
                await looked(database)
            assert await asyncio.to_thread(terminate, database_url, MAINTAINS) == 1
            await looked(database)
            await looked(database, after_s=2 * ABSENT_S)
            assert await count(database, "running") == 2

    asyncio.run(scenario())


def test_a_lock_that_is_lost_is_taken_again(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database, maintained(database_url):
            runner, _ = await running_jobs(database)
            holder = Holder(database_url, runner.session_id)
            async with holder.running():
                await looked(database)
                for _ in range(3):
                    assert await asyncio.to_thread(terminate, database_url, LISTENS) == 1
                    await holder.hears("lost")
                    await holder.hears("connected")
                    await looked(database)
                await looked(database, after_s=2 * ABSENT_S)
                assert await count(database, "running") == 2

    asyncio.run(scenario())


def test_a_runner_that_renews_without_its_lock_is_not_lost(database_url: str) -> None:
    """It can't get the connection, and lives."""

    async def scenario() -> None:
        async with opened(database_url) as database, maintained(database_url):
            runner, jobs = await running_jobs(database)
            async with Holder(database_url, runner.session_id).running():
                await looked(database)
            for _ in range(8):
                await runner.renew(*jobs)
                await looked(database, after_s=0.4 * ABSENT_S, what="session_mark_v1")  # its lock is absent
            assert await count(database, "running") == 2

    asyncio.run(scenario())
