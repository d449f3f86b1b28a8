from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from harness.postgres import query, terminate, wait_until
from harness.prepared import put_data
from procrastinate.exceptions import AlreadyEnqueued
from procrastinate.manager import JobManager

from headrace.database import Database
from headrace.embedded import EmbeddedPostgres
from headrace.errors import DatabaseError
from headrace.queue import worker
from headrace.queue.worker import Chore, Worker

NAME = "headrace-test"
EACH_SECOND = "* * * * * *"
JOBS = "SELECT task_name, status::text FROM procrastinate_jobs ORDER BY task_name, status"
WORKERS = "SELECT count(*) FROM procrastinate_workers"
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "POLL_EVERY", 0.05)
    monkeypatch.setattr(worker, "_LONGEST_PAUSE", 0.2)


class Work:
    """What a chore does: it counts, and may be held up or fail."""

    def __init__(self) -> None:
        self.count = 0
        self.held_up = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.error: Exception | None = None
        self._done = asyncio.Condition()

    def chore(self, name: str = "sweep") -> Chore:
        return Chore(name, EACH_SECOND, self._run)

    async def reaches(self, count: int) -> None:
        async with asyncio.timeout(20), self._done:
            await self._done.wait_for(lambda: self.count >= count)

    async def _run(self) -> None:
        if not self.go_on.is_set():
            self.held_up.set()
        await self.go_on.wait()
        async with self._done:
            self.count += 1
            self._done.notify_all()
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def working(url: str, *chores: Chore) -> AsyncIterator[None]:
    async with await Database.open(url, application_name=NAME) as database:
        task = asyncio.create_task(Worker(database, chores).run())
        try:
            yield
        finally:
            task.cancel()
            async with asyncio.timeout(5):
                await asyncio.wait({task})
            assert task.cancelled()


async def ask(url: str, statement: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
    return await asyncio.to_thread(query, url, statement, *parameters)


async def comes_true(url: str, statement: LiteralString, rows: list[tuple[Any, ...]]) -> bool:
    return await asyncio.to_thread(wait_until, lambda: query(url, statement) == rows, seconds=10)


def test_chore_is_done_again_and_again_and_leaves_nothing_behind(database_url: str) -> None:
    async def scenario() -> None:
        work = Work()
        async with working(database_url, work.chore()):
            await work.reaches(2)
        assert await ask(database_url, JOBS) in ([], [("headrace.sweep", "todo")])
        assert await ask(database_url, WORKERS) == [(0,)]

    asyncio.run(scenario())


def test_chore_that_still_waits_is_not_queued_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defer = JobManager.defer_periodic_job

    async def scenario() -> None:
        refused = asyncio.Event()

        async def watched(manager: JobManager, **arguments: Any) -> int | None:
            try:
                return await defer(manager, **arguments)
            except AlreadyEnqueued:
                refused.set()
                raise

        monkeypatch.setattr(JobManager, "defer_periodic_job", watched)
        work = Work()
        work.go_on.clear()
        async with working(database_url, work.chore()):
            async with asyncio.timeout(20):
                await work.held_up.wait()
                await refused.wait()
            assert await ask(database_url, JOBS) == [("headrace.sweep", "doing"), ("headrace.sweep", "todo")]
            work.go_on.set()
            await work.reaches(2)

    asyncio.run(scenario())


def test_two_workers_do_a_chore_once(database_url: str) -> None:
    """If each did it each second, three more would come with the next second."""

    async def scenario() -> None:
        work = Work()
        loop = asyncio.get_running_loop()
        async with working(database_url, work.chore()), working(database_url, work.chore()):
            await work.reaches(1)
            started, before = loop.time(), work.count
            await work.reaches(before + 3)
            assert loop.time() - started > 1.6

    asyncio.run(scenario())


def test_failing_chore_is_told_and_done_again(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        refused, broken = Work(), Work()
        refused.error = DatabaseError("Postgres refused: no")
        broken.error = RuntimeError("the chore is broken")
        async with working(database_url, refused.chore("refused"), broken.chore("broken")):
            await refused.reaches(2)
            await broken.reaches(2)

    asyncio.run(scenario())
    assert "the chore refused failed: Postgres refused: no" in caplog.text
    assert "RuntimeError: the chore is broken" in caplog.text
    assert "worker ended" not in caplog.text


def test_what_dead_workers_left_behind_is_deleted(database_url: str) -> None:
    query(
        database_url,
        "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '1 hour')",
    )
    query(
        database_url,
        "INSERT INTO procrastinate_jobs (queue_name, task_name, status, worker_id)"
        " SELECT 'headrace.maintenance', 'headrace.dead', 'doing', id FROM procrastinate_workers",
    )

    async def scenario() -> None:
        work = Work()
        async with working(database_url, work.chore()):
            await work.reaches(1)
        assert ("headrace.dead", "doing") not in await ask(database_url, JOBS)
        assert await ask(database_url, WORKERS) == [(0,)]

    asyncio.run(scenario())


@pytest.mark.parametrize("table", ["procrastinate_jobs", "procrastinate_periodic_defers"])
def test_worker_whose_statement_is_killed_goes_on(
    database_url: str, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Procrastinate's Worker raises when its main loop is struck, and just ends when its deferrer is."""
    caplog.set_level("INFO")

    async def scenario() -> None:
        work = Work()
        async with working(database_url, work.chore()):
            await work.reaches(1)
            with psycopg.connect(database_url) as blocker:
                blocker.execute(f"LOCK TABLE {table}")  # type: ignore[arg-type]
                assert await asyncio.to_thread(
                    wait_until, lambda: query(database_url, BLOCKED, NAME) > [(0,)], seconds=10
                )
                await asyncio.to_thread(terminate, database_url, NAME)
            await work.reaches(work.count + 2)

    asyncio.run(scenario())
    assert caplog.text.count("chores wait: Postgres at") == caplog.text.count("chores go on") == 1
    assert "worker ended" not in caplog.text


def test_worker_that_was_taken_for_dead_starts_again(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        work = Work()
        async with working(database_url, work.chore()):
            await work.reaches(1)
            await ask(database_url, "DELETE FROM procrastinate_workers")
            await work.reaches(work.count + 2)

    asyncio.run(scenario())
    assert "worker ended" in caplog.text


def test_end_breaks_off_a_chore_that_hangs(database_url: str) -> None:
    async def scenario() -> None:
        work = Work()
        work.go_on.clear()
        async with working(database_url, work.chore()):
            async with asyncio.timeout(20):
                await work.held_up.wait()
        assert ("headrace.sweep", "doing") not in await ask(database_url, JOBS)

    asyncio.run(scenario())


def test_end_breaks_off_a_statement_that_hangs(database_url: str) -> None:
    async def scenario() -> None:
        work = Work()
        with psycopg.connect(database_url) as blocker:
            async with working(database_url, work.chore()):
                await work.reaches(1)
                blocker.execute("LOCK TABLE procrastinate_jobs")
                assert await asyncio.to_thread(
                    wait_until, lambda: query(database_url, BLOCKED, NAME) > [(0,)], seconds=10
                )
            assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"chores", "worker loop"})

    asyncio.run(scenario())


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    put_data(folder)
    with EmbeddedPostgres(folder) as postgres:
        yield postgres
    shutil.rmtree(folder, ignore_errors=True)


def test_chores_go_on_after_postgres_was_away(
    server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        work = Work()
        async with working(server.url, work.chore()):
            await work.reaches(1)
            await asyncio.to_thread(server.stop)
            assert await asyncio.to_thread(wait_until, lambda: "chores wait" in caplog.text, seconds=10)
            await asyncio.to_thread(server.start)
            await work.reaches(work.count + 2)

    asyncio.run(scenario())
    assert caplog.text.count("chores wait: Postgres at") == caplog.text.count("chores go on") == 1
    assert "worker ended" not in caplog.text
