"""Waiting for jobs: nothing that happens to one goes unheard, whichever way it is told."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.domain import FINAL, State
from headrace.errors import DatabaseUnavailable
from headrace.gateway.waking import Watch, Watcher, departure
from headrace.ids import uuid7
from headrace.ledger import reading
from headrace.ledger.reading import Job

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(job_id: str, state: State, sequence: int) -> Job:
    return Job(
        job_id=job_id,
        owner_id="owner",
        function="echo",
        interface="i1",
        state=state,
        attempt=0,
        charged=0,
        attempts=1,
        created_at=NOW,
        queue_deadline_at=NOW,
        deadline_at=NOW,
        first_started_at=None,
        started_at=None,
        finished_at=NOW if state in FINAL else None,
        progress=None,
        progress_message="",
        progress_sequence=0,
        error_category=None,
        error_message=None,
        error_errors=[],
        result_size=None,
        small_result=None,
        result_expires_at=None,
        result_expired=None,
        request_id="",
        sequence=sequence,
        waited_s=0,
        execution_s=0,
    )


class Ledger:
    """What the ledger would say; counts how often it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: dict[str, tuple[State, int]] = {}
        self.away = False
        self.reads = 0
        self.asked: list[list[str]] = []
        monkeypatch.setattr(reading, "find", self.find)
        monkeypatch.setattr(reading, "standings", self.standings)

    async def find(self, _database: Any, job_id: str, _owner_id: Any, *, actor: str) -> Job | None:
        assert actor.startswith("gateway:")
        self.reads += 1
        if self.away:
            raise DatabaseUnavailable("gone")
        return job(job_id, *self.jobs[job_id]) if job_id in self.jobs else None

    async def standings(self, _database: Any, job_ids: list[str]) -> dict[str, tuple[State, int]]:
        self.asked.append(sorted(job_ids))
        if self.away:
            raise DatabaseUnavailable("gone")
        return {job_id: self.jobs[job_id] for job_id in job_ids if job_id in self.jobs}


async def stays() -> Any:
    await asyncio.Event().wait()


def run(monkeypatch: pytest.MonkeyPatch, scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            ledger = Ledger(monkeypatch)
            await scenario(Watcher(None, uuid7()), ledger)  # type: ignore[arg-type] - nothing asks it

    asyncio.run(limited())


async def waiting(watcher: Watcher, watch: Watch, seconds: float = 5) -> asyncio.Task[Job | None]:
    """A waiter that has begun."""
    task = asyncio.create_task(watcher.until_final(watch, None, seconds, stays))
    for _ in range(5):
        await asyncio.sleep(0)
    return task


def test_a_notification_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, ledger: Ledger) -> None:
        with watcher.watch("a") as one, watcher.watch("a") as two, watcher.watch("b") as other:
            tasks = [await waiting(watcher, watch) for watch in (one, two)]
            elsewhere = await waiting(watcher, other)
            ledger.jobs = {"a": ("succeeded", 3), "b": ("running", 2)}
            watcher.heard("a")
            watcher.heard("of somebody else")
            for found in await asyncio.gather(*tasks):
                assert (found.state, found.sequence) == ("succeeded", 3)
            assert not elsewhere.done()
            elsewhere.cancel()

    run(monkeypatch, scenario)


def test_a_notification_before_the_wait_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, ledger: Ledger) -> None:
        ledger.jobs = {"a": ("failed", 3)}
        with watcher.watch("a") as watch:
            watcher.heard("a")
            found = await watcher.until_final(watch, None, 5, stays)
            assert found is not None
            assert found.state == "failed"

    run(monkeypatch, scenario)


def test_one_query_looks_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, ledger: Ledger) -> None:
        await watcher.check()
        assert ledger.asked == []
        with watcher.watch("a") as first, watcher.watch("a") as second, watcher.watch("b") as third:
            tasks = [await waiting(watcher, watch) for watch in (first, second, third)]
            ledger.jobs = {"a": ("succeeded", 3), "b": ("cancelled", 2)}
            await watcher.check()
            found = [one.state for one in await asyncio.gather(*tasks) if one]
            assert found == ["succeeded", "succeeded", "cancelled"]
            assert ledger.asked == [["a", "b"]]

    run(monkeypatch, scenario)


def test_what_is_no_news_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, ledger: Ledger) -> None:
        ledger.jobs = {"a": ("running", 2)}
        with watcher.watch("a") as watch:
            task = await waiting(watcher, watch)
            for _ in range(3):
                await watcher.check()
                await asyncio.sleep(0)
            assert ledger.reads == 1
            ledger.jobs = {"a": ("succeeded", 3)}
            await watcher.check()
            assert (await task).state == "succeeded"
        assert ledger.reads == 2

    run(monkeypatch, scenario)


def test_what_one_waiter_reads_the_others_hear_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, ledger: Ledger) -> None:
        with watcher.watch("a") as idle, watcher.watch("a") as reader:
            task = await waiting(watcher, idle)
            ledger.jobs = {"a": ("succeeded", 3)}
            await watcher.read(reader)
            await watcher.check()  # finds nothing new
            assert (await task).state == "succeeded"

    run(monkeypatch, scenario)


def test_an_outage_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, ledger: Ledger) -> None:
        ledger.jobs = {"a": ("running", 2)}
        with watcher.watch("a") as watch:
            task = await waiting(watcher, watch)
            await watcher.check()
            await asyncio.sleep(0)
            ledger.jobs = {"a": ("succeeded", 3)}
            await watcher.check()  # the last thing that came through
            ledger.away = True
            await asyncio.sleep(0)
            await watcher.check()
            assert (ledger.reads, task.done()) == (2, False)
            ledger.away = False
            await watcher.check()
            assert (await task).state == "succeeded"

    run(monkeypatch, scenario)


def test_a_wait_for_a_job_that_was_pruned_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, ledger: Ledger) -> None:
        ledger.jobs = {"a": ("running", 2)}
        with watcher.watch("a") as watch:
            task = await waiting(watcher, watch)
            await watcher.check()
            await asyncio.sleep(0)
            assert (task.done(), watch.is_gone) == (False, False)
            ledger.jobs = {}
            ledger.away = True
            watcher.heard("a")
            await asyncio.sleep(0)
            assert (task.done(), watch.is_gone) == (False, False)  # nobody has said that it is gone
            ledger.away = False
            await watcher.check()
            found = await task
            assert found is not None
            assert (found.state, watch.is_gone, watch.has_left) == ("running", True, False)

    run(monkeypatch, scenario)


def test_a_wait_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, ledger: Ledger) -> None:
        ledger.jobs = {"a": ("running", 2)}
        with watcher.watch("a") as watch:
            assert await watcher.until_final(watch, job("a", "queued", 1), 0, stays) == job("a", "queued", 1)
            assert await watcher.until_final(watch, None, 0.05, stays) is None
            assert not watch.has_left
        assert ledger.reads == 0

    run(monkeypatch, scenario)


def test_a_wait_ends_when_its_client_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, _ledger: Ledger) -> None:
        leaves = asyncio.Event()
        first = iter([{"type": "http.request", "body": b""}])

        async def receive() -> Any:
            if (message := next(first, None)) is not None:
                return message
            await leaves.wait()
            return {"type": "http.disconnect"}

        with watcher.watch("a") as watch:
            task = asyncio.create_task(watcher.until_final(watch, None, 5, receive))
            await asyncio.sleep(0.01)
            assert not task.done()
            leaves.set()
            assert await task is None
            assert watch.has_left

    run(monkeypatch, scenario)


def test_a_gateway_that_closes_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, _ledger: Ledger) -> None:
        with watcher.watch("a") as watch:
            task = await waiting(watcher, watch)
            watcher.close()
            assert await task is None
            assert await watcher.until_final(watch, None, 5, stays) is None
            assert not watch.has_left

    run(monkeypatch, scenario)


def test_nothing_is_kept_of_whoever_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watcher: Watcher, ledger: Ledger) -> None:
        ledger.jobs = {"a": ("running", 2)}
        with watcher.watch("a"), watcher.watch("a"):
            await watcher.check()
        await watcher.check()
        assert len(ledger.asked) == 1
        assert not watcher._watches
        assert not watcher._standings

    run(monkeypatch, scenario)


def test_a_departure_is_forgotten_with_its_wait() -> None:
    async def scenario() -> None:
        with departure(stays, lambda: None) as leaving:
            await asyncio.sleep(0)
        await asyncio.wait([leaving])
        assert leaving.cancelled()

    asyncio.run(scenario())
