"""A whole runner in this process, on a database of the test's own, and whoever submits jobs to it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from gpu_runner.runner import Runner
from harness.postgres import query
from headrace.database import Database, Listener
from headrace.ids import uuid7
from headrace.ledger import cancelling, reading, submission
from headrace.ledger.reading import Job, JobEvent
from headrace.ledger.submission import NewJob
from headrace.sdk.discovery import discover
from headrace.settings import load_settings

MODULES = ("job_functions", "site_functions")
_OWNER = (
    "INSERT INTO owner (name) VALUES ('ada') ON CONFLICT (name) DO UPDATE SET name = 'ada' RETURNING id::text"
)


class Submitter:
    """Submits jobs and follows them, as a gateway does."""

    def __init__(self, url: str, database: Database) -> None:
        self.database = database
        self.manifests = {name: function.manifest for name, function in discover(MODULES).items()}
        self.gateway_id = str(uuid.uuid4())
        self.owner_id: str = query(url, _OWNER)[0][0]
        self._news = asyncio.Condition()
        self._connected = asyncio.Event()
        channel = f"headrace_jobs_{self.gateway_id.replace('-', '')}"
        self._listener = Listener(url, [channel], self._notified, self._connected.set)

    async def listen(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._listener.run())
        await self._connected.wait()
        return task

    async def _notified(self, _channel: str, _job_id: str) -> None:
        async with self._news:
            self._news.notify_all()

    def job(self, function: str, *, attempts: int | None = None, total: float = 60, **input: Any) -> NewJob:
        data = msgspec.json.encode(input)
        manifest = self.manifests[function]
        return NewJob(
            job_id=uuid7(),
            owner_id=self.owner_id,
            function=function,
            interface=manifest.interface,
            input=data,
            digest=hashlib.sha256(data).digest(),
            cost=1.0,
            attempts=attempts or manifest.attempts,
            queue_s=total / 2,
            total_s=total,
            most_outstanding=100_000,
            most_waiting=100_000,
            waiter=self.gateway_id,
        )

    async def submit(self, *jobs: NewJob) -> list[str]:
        receipts = await submission.submit(self.database, jobs)
        assert {receipt.outcome for receipt in receipts} == {"accepted"}
        return [receipt.job_id for receipt in receipts]

    async def send(self, function: str, **options: Any) -> str:
        (job_id,) = await self.submit(self.job(function, **options))
        await reading.watch(self.database, job_id, self.gateway_id, follow=True)
        return job_id

    async def find(self, job_id: str) -> Job:
        job = await reading.find(self.database, job_id, self.owner_id)
        assert job is not None
        return job

    async def until(self, job_id: str, wanted: Callable[[Job], bool]) -> Job:
        """The job, once it is so; asks again whenever something was told of any job."""
        async with self._news:
            while not wanted(job := await self.find(job_id)):
                await self._news.wait()
            return job

    async def state(self, job_id: str, state: str) -> Job:
        return await self.until(job_id, lambda job: job.state == state)

    async def end(self, job_id: str) -> Job:
        return await self.until(job_id, lambda job: job.finished_at is not None)

    async def result(self, job_id: str) -> Any:
        data = await reading.result(self.database, job_id, self.owner_id)
        assert data is not None
        return msgspec.json.decode(data)

    async def events(self, job_id: str) -> list[JobEvent]:
        return await reading.events(self.database, job_id)

    async def cancel(self, job_id: str) -> Job:
        job = await cancelling.cancel(self.database, job_id, self.owner_id, "key:test")
        assert job is not None
        return job


@asynccontextmanager
async def submitter(url: str) -> AsyncIterator[Submitter]:
    async with await Database.open(url, application_name="test") as database:
        made = Submitter(url, database)
        listening = await made.listen()
        try:
            yield made
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


class RunningRunner:
    def __init__(self, url: str, **settings: Any) -> None:
        self.settings = load_settings(
            **{"functions": list(MODULES), "device": "cpu", "database_url": url, **settings}
        )
        self.runner = Runner(self.settings, discover(self.settings.functions))
        self.task = asyncio.create_task(self.runner.run())

    @property
    def session_id(self) -> str:
        return self.runner._runner_id

    def count(self, name: str, **labels: str) -> float:
        return self.runner._metrics.registry.get_sample_value(name, labels) or 0.0

    async def stop(self, signals: int = 0) -> None:
        """As an operator stops it: by a signal, or by two; in words where several run in this process."""
        if not self.task.done():
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0)
            if not signals:
                self.runner._signalled()
        await self.task


@asynccontextmanager
async def runner(url: str, **settings: Any) -> AsyncIterator[RunningRunner]:
    """A runner whose executors load and which serves jobs only."""
    running = RunningRunner(url, **settings)
    try:
        yield running
    finally:
        await running.stop()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def begun(path: Path) -> None:
    """A function has noted its start."""
    while not lines(path):
        await asyncio.sleep(0.01)


def run(scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(limited())
