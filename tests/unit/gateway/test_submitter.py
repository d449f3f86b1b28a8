"""Submitting jobs in batches, on a real Postgres."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from harness.postgres import query

from headrace.database import Database
from headrace.errors import DatabaseError, DatabaseUnavailable
from headrace.gateway import submitter
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.gateway.submitter import Submitter
from headrace.ids import uuid7
from headrace.keys import create_key, find_owner, hash_key
from headrace.ledger import submission
from headrace.ledger.submission import NewJob, Receipt


def new_job(owner_id: str, data: bytes = b"{}", **changes: Any) -> NewJob:
    values: dict[str, Any] = {
        "job_id": uuid7(),
        "owner_id": owner_id,
        "function": "echo",
        "interface": "i1",
        "input": data,
        "digest": hashlib.sha256(data).digest(),
        "cost": 1.0,
        "attempts": 1,
        "queue_s": 60.0,
        "total_s": 100.0,
        "most_outstanding": 10_000,
        "most_waiting": 10_000,
    }
    return NewJob(**values | changes)


class Recorded:
    """The ledger's `submit`, with a gate before it and a list of the batches that went through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[int] = []
        self.under_way = self.most_under_way = 0
        self.gate = asyncio.Event()
        self.errors: list[Exception] = []
        self._submit = submission.submit
        monkeypatch.setattr(submission, "submit", self)

    async def __call__(
        self, database: Database, jobs: Sequence[NewJob], *, key_ttl_s: float
    ) -> list[Receipt]:
        self.batches.append(len(jobs))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.gate.wait()
            if self.errors:
                raise self.errors.pop(0)
            return await self._submit(database, jobs, key_ttl_s=key_ttl_s)
        finally:
            self.under_way -= 1


class Rig:
    def __init__(self, database: Database, owner_id: str, ledger: Recorded) -> None:
        self.metrics = GatewayMetrics()
        self.submitter = Submitter(database, self.metrics)
        self.owner_id = owner_id
        self.ledger = ledger

    def job(self, data: bytes = b"{}", **changes: Any) -> NewJob:
        return new_job(self.owner_id, data, **changes)

    async def begun(self, count: int) -> None:
        while len(self.ledger.batches) < count:
            await asyncio.sleep(0)

    def counted(self) -> tuple[float | None, float | None]:
        sample = self.metrics.registry.get_sample_value
        return sample("headrace_submits_total"), sample("headrace_submitted_jobs_total")


def run(url: str, monkeypatch: pytest.MonkeyPatch, scenario: Any) -> None:
    async def limited() -> None:
        async with (
            asyncio.timeout(20),
            await Database.open(url, application_name="test", max_size=2) as database,
        ):
            key = await find_owner(database, hash_key(await create_key(database, "ada")))
            assert key is not None
            await scenario(Rig(database, key.owner_id, Recorded(monkeypatch)))

    asyncio.run(limited())


def test_what_arrives_meanwhile_goes_together(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        jobs = [rig.job() for _ in range(12)]
        waiting = [asyncio.ensure_future(rig.submitter.submit(jobs[0]))]
        await rig.begun(1)
        waiting.append(asyncio.ensure_future(rig.submitter.submit(jobs[1])))
        await rig.begun(2)
        waiting += [asyncio.ensure_future(rig.submitter.submit(job)) for job in jobs[2:]]
        for _ in range(20):
            await asyncio.sleep(0)
        assert rig.ledger.batches == [1, 1]  # two are under way, the others wait

        rig.ledger.gate.set()
        receipts = await asyncio.gather(*waiting)
        assert [receipt.job_id for receipt in receipts] == [job.job_id for job in jobs]
        assert {receipt.outcome for receipt in receipts} == {"accepted"}
        assert (rig.ledger.batches, rig.ledger.most_under_way) == ([1, 1, 10], 2)
        assert rig.counted() == (3, 12)

    run(database_url, monkeypatch, scenario)
    assert query(database_url, "SELECT count(*) FROM job WHERE state = 'queued'") == [(12,)]


def test_what_arrives_at_once_goes_at_once(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        rig.ledger.gate.set()
        await asyncio.gather(*(rig.submitter.submit(rig.job()) for _ in range(5)))
        assert rig.ledger.batches == [5]

    run(database_url, monkeypatch, scenario)


def test_a_batch_is_bounded(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        monkeypatch.setattr(submitter, "MOST_JOBS", 3)
        monkeypatch.setattr(submitter, "MOST_BYTES", 100)
        rig.ledger.gate.set()
        sizes = [2, 2, 2, 2, 98, 2, 500, 2]
        inputs = [b'"%b"' % (b"x" * (size - 2)) for size in sizes]
        await asyncio.gather(*(rig.submitter.submit(rig.job(data)) for data in inputs))
        assert sum(rig.ledger.batches) == 8
        assert sorted(rig.ledger.batches) == [1, 1, 1, 2, 3]

    run(database_url, monkeypatch, scenario)


def test_one_job_cannot_fail_the_others(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        rig.ledger.gate.set()
        jobs = [rig.job() for _ in range(3)]
        jobs.insert(1, rig.job(cost=-1.0))
        outcomes = await asyncio.gather(*map(rig.submitter.submit, jobs), return_exceptions=True)
        assert isinstance(outcomes[1], DatabaseError)
        others = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
        assert [receipt.outcome for receipt in others] == ["accepted"] * 3
        assert rig.ledger.batches == [4, 1, 1, 1, 1]
        assert rig.counted() == (3, 3)

    run(database_url, monkeypatch, scenario)


def test_without_postgres_nobody_knows(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitter, "PATIENCE_S", -1.0)

    async def scenario(rig: Rig) -> None:
        rig.ledger.errors = [DatabaseUnavailable("gone")]
        rig.ledger.gate.set()
        job = rig.job()
        with pytest.raises(Problem) as caught:
            await rig.submitter.submit(job)
        assert (caught.value.code, caught.value.status) == ("database-unavailable", 503)
        assert "isn't known" in caught.value.detail
        assert caught.value.extra["job_id"] == caught.value.headers["Headrace-Job-Id"] == job.job_id
        assert (await rig.submitter.submit(rig.job())).outcome == "accepted"  # it goes on
        assert (await rig.submitter.submit(job)).outcome == "accepted"  # and may be repeated

    run(database_url, monkeypatch, scenario)


def test_a_short_outage_is_waited_out(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the reply to a commit was lost: the job is there, once."""

    async def scenario(rig: Rig) -> None:
        rig.ledger.errors = [DatabaseUnavailable("gone"), DatabaseUnavailable("gone")]
        rig.ledger.gate.set()
        job = rig.job()
        assert (await rig.submitter.submit(job)).outcome == "accepted"
        assert rig.ledger.batches == [1, 1, 1]
        assert (await rig.submitter.submit(job)).outcome == "replayed"

    run(database_url, monkeypatch, scenario)


def test_a_fault_of_the_program_hangs_nobody(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        rig.ledger.errors = [ZeroDivisionError()]
        rig.ledger.gate.set()
        with pytest.raises(ZeroDivisionError):
            await rig.submitter.submit(rig.job())
        assert (await rig.submitter.submit(rig.job())).outcome == "accepted"

    run(database_url, monkeypatch, scenario)


def test_what_is_under_way_ends_before_it_closes(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        waiting = asyncio.ensure_future(rig.submitter.submit(rig.job()))
        await rig.begun(1)
        closing = asyncio.ensure_future(rig.submitter.close())
        await asyncio.sleep(0)
        assert not closing.done()
        with pytest.raises(Problem, match="database-unavailable"):
            await rig.submitter.submit(rig.job())
        rig.ledger.gate.set()
        await closing
        assert (await waiting).outcome == "accepted"

    run(database_url, monkeypatch, scenario)


def test_a_caller_that_goes_leaves_its_job(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        waiting = asyncio.ensure_future(rig.submitter.submit(rig.job()))
        await rig.begun(1)
        waiting.cancel()
        rig.ledger.gate.set()
        assert (await rig.submitter.submit(rig.job())).outcome == "accepted"
        await rig.submitter.close()

    run(database_url, monkeypatch, scenario)
    assert query(database_url, "SELECT count(*) FROM job") == [(2,)]


def test_a_job_that_comes_just_when_both_submits_have_ended_is_sent(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rig: Rig) -> None:
        async def submit(_database: Database, jobs: Sequence[NewJob], **_: float) -> list[Receipt]:
            await released
            return [
                Receipt(
                    job_id=job.job_id,
                    outcome="accepted",
                    state="queued",
                    created_at=None,
                    queue_deadline_at=None,
                    deadline_at=None,
                    outstanding=0,
                )
                for job in jobs
            ]

        monkeypatch.setattr(submission, "submit", submit)
        loop = asyncio.get_running_loop()
        released: asyncio.Future[None] = loop.create_future()
        first = asyncio.create_task(rig.submitter.submit(rig.job()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.create_task(rig.submitter.submit(rig.job()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        released.set_result(None)
        third = asyncio.create_task(rig.submitter.submit(rig.job()))
        async with asyncio.timeout(5):
            await asyncio.gather(first, second, third)

    run(database_url, monkeypatch, scenario)
