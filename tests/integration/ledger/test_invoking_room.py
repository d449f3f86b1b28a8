"""Calls that calls make, in the ledger: they wait for room or a quota, and are cancelled."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import msgspec
import pytest
from harness.asking import Site, run, submitted
from harness.ledger import row
from harness.postgres import query

from headrace.errors import DatabaseError
from headrace.ledger import cancelling, invoking, submission


def test_without_room_it_is_refused_for_now(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        waiting = site.ask(site.call())
        async with asyncio.timeout(20):
            while not query(database_url, "SELECT 1 FROM job"):
                await asyncio.sleep(0.005)
        refused = await site.told(site.ask(site.call(), 2))
        assert (refused.category, refused.is_passing) == ("backlog-full", True)
        waiting.cancel()

    run(database_url, scenario, backlog=1)


def test_it_comes_back_when_there_should_be_room(database_url: str) -> None:
    """With the place that was kept for it: here, as if a second were expected."""

    async def scenario(site: Site) -> None:
        first = site.ask(site.call())
        async with asyncio.timeout(20):
            while not query(database_url, "SELECT 1 FROM job"):
                await asyncio.sleep(0.005)
        query(database_url, "UPDATE lane SET most_waiting = 1")
        waits = site.ledger._wait_for_room
        refusals: list[str] = []

        async def soon(receipt: Any, left_s: float) -> str:
            refusals.append(receipt.outcome)
            job = await site.claim()  # it has started: there is room
            await site.runner.end(job, output=b"1")
            known = msgspec.structs.replace(receipt, place=receipt.place or str(uuid.uuid4()), due_s=0.01)
            return await waits(known, left_s)

        site.ledger._wait_for_room = soon
        second = site.ask(site.call(), 2)
        async with asyncio.timeout(20):
            while not refusals:
                await asyncio.sleep(0.005)
        assert (await site.told(first)).output == b"1"
        await site.runner.end(await site.claim(), output=b"2")
        assert (await site.told(second)).output == b"2"
        assert refusals == ["backlog-full"]

    run(database_url, scenario, backlog=1)


def test_at_the_quota_it_waits_for_another_job_of_the_owner(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(site: Site) -> None:
        first = site.ask(site.call())
        job = await site.claim()
        refused = _refusals(monkeypatch)
        second = site.ask(site.call(), 2)
        async with asyncio.timeout(20):
            while len(refused) < 2:
                await asyncio.sleep(0.005)
        await site.runner.end(job, output=b"1")
        assert (await site.told(first)).output == b"1"
        await site.runner.end(await site.claim(), output=b"2")
        assert (await site.told(second)).output == b"2"
        assert set(refused) == {"quota-exceeded"}

        third = site.ask(site.call(), 3)
        await site.claim()
        late = await site.told(site.ask(site.call(left=0.2), 4))  # the first pause is as long at most
        assert (late.category, late.is_passing) == ("quota-exceeded", True)
        third.cancel()

    run(database_url, scenario, owner_jobs=1)


def test_callers_that_fill_their_owners_quota_get_what_they_call(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other: each level of callers has a place past the quota."""

    async def scenario(site: Site) -> None:
        callers = [(await submitted(site)).job_id for _ in range(2)]
        refused = _refusals(monkeypatch)
        asking = [site.ask(site.call(job_id=one), number) for number, one in enumerate(callers)]
        for output in (b"1", b"2"):
            job = await site.claim()
            await site.runner.end(job, output=output)
        assert sorted([(await site.told(one)).output or b"" for one in asking]) == [b"1", b"2"]
        assert set(refused) <= {"quota-exceeded"}

    run(database_url, scenario, owner_jobs=2)


def _refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gets what the ledger refuses from now on."""
    submit = submission.submit
    refused: list[str] = []

    async def noted(*given: Any) -> Any:
        (receipt,) = await submit(*given)
        if receipt.outcome not in ("accepted", "replayed"):
            refused.append(receipt.outcome)
        return [receipt]

    monkeypatch.setattr(submission, "submit", noted)
    return refused


def test_a_cancel_waits_neither_for_other_queries_nor_for_a_broken_ledger(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        asking = site.ask(call)
        job = await site.claim()
        never = asyncio.Event()
        reached: list[object] = []

        async def hang(*_given: Any) -> None:
            reached.append(None)
            await never.wait()

        monkeypatch.setattr(invoking, "invoker", hang)
        hanging = [site.ask(site.call()) for _ in range(2)]
        async with asyncio.timeout(20):
            while len(reached) < 2:
                await asyncio.sleep(0.005)
            await site.ledger.cancel(job.job_id, call)
        assert (await row(site.database, job.job_id))["state"] == "cancel_requested"

        async def refuse(*_given: Any) -> None:
            raise DatabaseError("permission denied")

        monkeypatch.setattr(cancelling, "cancel", refuse)
        await site.ledger.cancel(job.job_id, call)
        assert "permission denied" in caplog.text
        for task in (asking, *hanging):
            task.cancel()

    run(database_url, scenario)


def test_a_cancel_ends_it_and_spares_what_has_ended(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        asking = site.ask(call)
        job = await site.claim()
        await site.ledger.cancel(job.job_id, call)
        assert (await row(site.database, job.job_id))["state"] == "cancel_requested"
        await site.runner.end(job, "failed", category="cancelled")
        assert (await site.told(asking)).category == "job-cancelled"
        await site.ledger.cancel(job.job_id, call)
        await site.ledger.cancel(str(uuid.uuid4()), call)

        began = time.monotonic()
        second = site.ask(call, attempt=2)  # the one before isn't wanted any more, this one is
        assert (await site.claim()).job_id != job.job_id
        assert time.monotonic() - began < 20
        second.cancel()

    run(database_url, scenario)
