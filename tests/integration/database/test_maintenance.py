from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from harness.jobs import check_at_rest
from harness.postgres import query, terminate, wait_until
from harness.prepared import put_data

from headrace.database import Database, pool
from headrace.embedded import EmbeddedPostgres
from headrace.ids import uuid7
from headrace.ledger import execution, settling, submission
from headrace.ledger.settling import Settled
from headrace.ledger.submission import NewJob
from headrace.maintenance import Maintenance, chores, loop
from headrace.maintenance.chores import Chores
from headrace.maintenance.pruning import Pruning
from headrace.queue import worker

NAME = "headrace-maintenance"
STATES = "SELECT state, count(*) FROM job GROUP BY state ORDER BY state"
NEW_OWNER = "INSERT INTO owner (id, name) VALUES (gen_random_uuid(), gen_random_uuid()) RETURNING id::text"


class Passes:
    """Whether leases counted, for each pass that has begun."""

    def __init__(self) -> None:
        self._reaps: list[bool] = []
        self._changed = asyncio.Condition()

    async def settle(
        self, database: Database, actor: str, *, reap: bool, seen_at: datetime, limit: int
    ) -> Settled | None:
        async with self._changed:
            self._reaps.append(reap)
            self._changed.notify_all()
        return await settle(database, actor, reap=reap, seen_at=seen_at, limit=limit)

    async def next(self, *, reap: bool) -> None:
        """Wait for a pass that begins from now on, and of which that is true."""
        seen = len(self._reaps)
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: reap in self._reaps[seen:])

    async def more(self, count: int) -> Sequence[bool]:
        seen = len(self._reaps)
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self._reaps) >= seen + count)
        return self._reaps[seen:]


settle = settling.settle


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    made = Passes()
    monkeypatch.setattr(settling, "settle", made.settle)
    return made


@asynccontextmanager
async def maintained(url: str, *, lease_s: float = 30, loops: int = 1) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(Maintenance(url, f"gateway:{number}", lease_s=lease_s).run())
        for number in range(loops)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)
        assert all(task.cancelled() for task in tasks)


async def submit(url: str, count: int = 1, *, queue_s: float = 600.0) -> None:
    owner_id = query(url, NEW_OWNER)[0][0]
    jobs = [
        NewJob(
            job_id=uuid7(),
            owner_id=owner_id,
            function="fish",
            interface="i1",
            input=b"{}",
            digest=hashlib.sha256(b"{}").digest(),
            cost=1.0,
            attempts=2,
            queue_s=queue_s,
            total_s=600.0,
            most_outstanding=10_000,
            most_waiting=10_000,
        )
        for _ in range(count)
    ]
    async with await Database.open(url, application_name="headrace-test") as database:
        await submission.submit(database, jobs)


async def claim(url: str, *, lease_s: float) -> None:
    async with await Database.open(url, application_name="headrace-test") as database:
        claimed = await execution.claim(
            database,
            session_id=uuid7(),
            claim_id=uuid7(),
            lanes=[execution.Lane("fish", "i1", 0)],
            free=[100],
            lease_s=lease_s,
        )
    assert claimed


async def ask(url: str, statement: LiteralString) -> list[tuple[Any, ...]]:
    return await asyncio.to_thread(query, url, statement)


async def comes_to(url: str, states: list[tuple[str, int]], *, seconds: float = 20) -> bool:
    return await asyncio.to_thread(wait_until, lambda: query(url, STATES) == states, seconds=seconds)


async def is_logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return await asyncio.to_thread(wait_until, lambda: text in caplog.text, seconds=20)


def test_overdue_job_expires_soon_without_a_runner(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        async with maintained(database_url):
            await submit(database_url, queue_s=0.5)
            assert await comes_to(database_url, [("expired", 1)])
            assert await is_logged(caplog, "past their time: 1 expired")

    asyncio.run(scenario())
    # A pass comes each quarter of a second; the rest is for a machine that is busy with other tests.
    late = "SELECT count(*) FROM job WHERE finished_at > queue_deadline_at + interval '3 seconds'"
    assert query(database_url, late) == [(0,)]
    check_at_rest(database_url)


def test_two_loops_move_each_job_once_and_many_without_a_pause(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LIMIT", 10)

    async def scenario() -> None:
        await submit(database_url, 1000, queue_s=0.0)
        async with maintained(database_url, loops=2):
            # With a pause after each pass it would be 12 s for two loops.
            assert await comes_to(database_url, [("expired", 1000)])

    asyncio.run(scenario())
    check_at_rest(database_url)
    assert query(database_url, "SELECT count(*) FROM job_event") == [(2000,)]
    took = "SELECT max(finished_at) - min(finished_at) < interval '9 seconds' FROM job"
    assert query(database_url, took) == [(True,)]


def test_lost_runners_jobs_wait_again(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        await submit(database_url, 3)
        await claim(database_url, lease_s=0.2)
        async with maintained(database_url, lease_s=0.2):
            assert await comes_to(database_url, [("queued", 3)])
            assert await is_logged(caplog, "past their time: 3 requeued")

    asyncio.run(scenario())


def test_leases_do_not_count_for_one_lease_after_the_start(database_url: str, passes: Passes) -> None:
    async def scenario() -> None:
        await submit(database_url)
        await claim(database_url, lease_s=0.01)
        async with maintained(database_url, lease_s=30):
            assert not any(await passes.more(4))
        assert await ask(database_url, STATES) == [("running", 1)]

    asyncio.run(scenario())


def test_leases_do_not_count_for_one_lease_after_an_interruption(database_url: str, passes: Passes) -> None:
    async def scenario() -> None:
        clock = asyncio.get_running_loop().time
        async with maintained(database_url, lease_s=1):
            await passes.next(reap=True)
            assert await asyncio.to_thread(terminate, database_url, NAME) == 1
            await passes.next(reap=False)
            started = clock()
            await passes.next(reap=True)
            assert clock() - started > 0.5

    asyncio.run(scenario())


def test_leases_do_not_count_for_one_lease_after_a_silence(
    database_url: str, passes: Passes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection may outlive it."""

    async def scenario() -> None:
        async with maintained(database_url, lease_s=1):
            await passes.next(reap=True)
            with psycopg.connect(database_url) as blocker:
                blocker.execute("LOCK TABLE lane")
                monkeypatch.setattr(pool, "ANSWER_WITHIN", 0.3)
                assert await is_logged(caplog, "no answer within 0.3 s")
            monkeypatch.undo()
            monkeypatch.setattr(settling, "settle", passes.settle)
            await passes.next(reap=False)
            await passes.next(reap=True)

    asyncio.run(scenario())


@pytest.mark.slow
def test_leases_do_not_count_for_one_lease_after_the_ledger_was_locked(
    database_url: str, passes: Passes
) -> None:
    """Runners couldn't renew either; and that another process has the turn is no sign that it comes on."""

    async def scenario() -> None:
        async with maintained(database_url, lease_s=4, loops=3):
            await passes.next(reap=True)
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute("LOCK TABLE job IN ACCESS EXCLUSIVE MODE")
                await asyncio.sleep(loop.GAP + 1)
                after = asyncio.create_task(passes.more(6))
                await asyncio.sleep(0)
                await other.rollback()
                assert not any(await after)
            await passes.next(reap=True)

    asyncio.run(scenario())


def test_leases_do_not_count_for_one_lease_after_a_jump(
    database_url: str, passes: Passes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    boot_time = loop.boot_time

    async def scenario() -> None:
        async with maintained(database_url, lease_s=1):
            await passes.next(reap=True)
            monkeypatch.setattr(loop, "boot_time", lambda: boot_time() - 60)
            await passes.next(reap=False)
            await passes.next(reap=True)

    asyncio.run(scenario())
    assert caplog.text.count("a clock jumped by +60.0 s: leases don't count for 1 s") == 1


def test_refused_statement_is_told_once_and_tried_again(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        await submit(database_url, queue_s=0.0)
        await ask(database_url, "ALTER FUNCTION settle_v2 RENAME TO settle_gone")
        async with maintained(database_url):
            assert await is_logged(caplog, "maintenance failed: Postgres refused: function settle_v2")
            await ask(database_url, "ALTER FUNCTION settle_gone RENAME TO settle_v2")
            assert await comes_to(database_url, [("expired", 1)])
            assert await is_logged(caplog, "maintenance goes on")

    asyncio.run(scenario())
    assert caplog.text.count("maintenance failed") == 1


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    put_data(folder)
    with EmbeddedPostgres(folder) as postgres:
        yield postgres
    shutil.rmtree(folder, ignore_errors=True)


def test_goes_on_after_postgres_was_away_without_a_false_reap(
    server: EmbeddedPostgres, passes: Passes, caplog: pytest.LogCaptureFixture
) -> None:
    """Leases that ran out while Postgres was away couldn't be renewed."""
    caplog.set_level("INFO")

    async def scenario() -> None:
        await submit(server.url, 50)
        async with maintained(server.url, lease_s=2):
            await passes.next(reap=True)
            await claim(server.url, lease_s=2)
            await asyncio.to_thread(server.stop)
            assert await is_logged(caplog, "maintenance waits: Postgres at")
            await asyncio.sleep(2)  # no event tells that the leases run out
            await asyncio.to_thread(server.start)
            await submit(server.url, queue_s=0.0)
            # Expiry goes on at once, leases are left to their runners.
            assert await comes_to(server.url, [("expired", 1), ("running", 50)])
            assert await is_logged(caplog, "maintenance goes on")
            await passes.next(reap=True)
            assert await comes_to(server.url, [("expired", 1), ("queued", 50)])

    asyncio.run(scenario())
    assert caplog.text.count("maintenance waits") == caplog.text.count("maintenance goes on") == 1
    assert "maintenance failed" not in caplog.text


def test_chores_mend_what_a_hand_in_the_database_broke(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "POLL_EVERY", 0.05)

    async def scenario() -> None:
        await submit(database_url, 2)
        await ask(database_url, "DELETE FROM procrastinate_jobs WHERE id = (SELECT min(entry_id) FROM job)")
        await ask(
            database_url,
            "INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES ('fish', 'headrace.run')",
        )
        async with await Database.open(database_url, application_name="headrace-test") as database:
            pruning = Pruning(database, job_ttl_s=60, key_ttl_s=60, audit_ttl_s=60)
            chores = asyncio.create_task(Chores(database, pruning).run())
            assert await is_logged(
                caplog, "queue and ledger differed: deleted 1 entries without a job, made 1 that jobs lacked"
            )
            chores.cancel()
            await asyncio.wait({chores})
        whole = (
            "SELECT count(*) FROM job j FULL JOIN procrastinate_jobs e ON e.id = j.entry_id"
            " WHERE j.entry_id IS NOT NULL AND e.task_name = 'headrace.run'"
        )
        assert await ask(database_url, whole) == [(2,)]

    asyncio.run(scenario())


def test_chores_add_expired_jobs_to_the_counts_of_usage(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "POLL_EVERY", 0.05)
    monkeypatch.setattr(chores, "_NOTES", 1)

    async def scenario() -> None:
        async with await Database.open(database_url, application_name="headrace-test") as database:
            for _ in range(2):
                await submit(database_url, 2, queue_s=0.0)
                await settle(database, "gateway:test")
            pruning = Pruning(database, job_ttl_s=60, key_ttl_s=60, audit_ttl_s=60)
            working = asyncio.create_task(Chores(database, pruning).run())
            counted = "SELECT sum(number)::integer FROM usage_minute WHERE kind = 'expired'"
            assert await asyncio.to_thread(
                wait_until, lambda: query(database_url, counted) == [(4,)], seconds=20
            )
            working.cancel()
            await asyncio.wait({working})

    asyncio.run(scenario())
