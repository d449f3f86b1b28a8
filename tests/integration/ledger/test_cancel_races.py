"""A cancel and another command at the same time: the order of their commits decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.ledger import (
    check_ledger,
    elapse,
    opened,
    row,
    state,
    story,
)
from harness.ledger_races import race
from harness.ledger_states import Placed, placed

from headrace.database import Database
from headrace.ledger import cancelling, settling
from headrace.ledger.execution import Kind

KINDS: list[Kind] = ["succeeded", "failed", "retry", "lost", "displaced", "returned"]
BEFORE = {"succeeded": "succeeded", "failed": "failed"}
"""What a job is when its finish has come first; after the other kinds it waits again, and is cancelled."""
G = "gateway:g"


def cancel(made: Placed) -> Callable[[Database], Awaitable[Any]]:
    return lambda database: cancelling.cancel(database, made.job.job_id, made.job.owner_id, "key:k")


async def settle(database: Database) -> int:
    """How many jobs were moved."""
    settled = await settling.settle(database, G)
    assert settled is not None
    return settled.expired + settled.failed + settled.cancelled + settled.requeued


def reap(made: Placed) -> Callable[[Database], Awaitable[int | None]]:
    async def give(database: Database) -> int | None:
        session_id = made.runner.session_id
        mark = (await settling.session_marks(database, [session_id]))[session_id]
        return None if mark is None else await settling.reap_session(database, session_id, mark, G)

    return give


async def ended(database: Database, made: Placed) -> tuple[str, list[str]]:
    """How the job stands, and by which states it came there."""
    await check_ledger(database)
    events = await story(database, made.job.job_id)
    return await state(database, made.job.job_id), [event[0] for event in events]


def test_claim_and_then_cancel(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "queued")
            claimed, _ = await race(database, lambda other: made.runner.on(other).claim(), cancel(made))
            assert [job.job_id for job in claimed] == [made.job.job_id]
            assert await ended(database, made) == (
                "cancel_requested",
                ["queued", "running", "cancel_requested"],
            )
            assert await made.runner.end(claimed[0]) == "cancelled"

    asyncio.run(scenario())


def test_cancel_and_then_claim(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "queued")
            _, claimed = await race(database, cancel(made), lambda _: made.runner.claim(), waits=False)
            assert claimed == []
            assert await made.runner.claim() == []
            assert await ended(database, made) == ("cancelled", ["queued", "cancelled"])

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_finish_and_then_cancel(database_url: str, kind: Kind) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "running")
            answer, job = await race(
                database, lambda other: made.runner.on(other).end(made.claimed, kind), cancel(made)
            )
            is_now, path = await ended(database, made)
            assert answer == BEFORE.get(kind, "queued")
            assert job.state == is_now == BEFORE.get(kind, "cancelled")
            assert path == ["queued", "running", answer, *["cancelled"] * (kind not in BEFORE)]
            assert (await row(database, made.job.job_id))["result"] == (
                b'"done"' if kind == "succeeded" else None
            )

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_cancel_and_then_finish(database_url: str, kind: Kind) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "running")
            job, answer = await race(database, cancel(made), lambda _: made.runner.end(made.claimed, kind))
            assert (job.state, answer) == ("cancel_requested", "cancelled")
            assert await ended(database, made) == (
                "cancelled",
                ["queued", "running", "cancel_requested", "cancelled"],
            )
            assert (await row(database, made.job.job_id))["result"] is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("attempts", "is_next", "at_last"), [(2, "queued", "cancelled"), (1, "failed", "failed")]
)
@pytest.mark.parametrize("by", ["lease", "lock"])
def test_reap_and_then_cancel(database_url: str, by: str, attempts: int, is_next: str, at_last: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "running", attempts=attempts)
            if by == "lease":
                await elapse(database, 31)
            first = settle if by == "lease" else reap(made)
            moved, job = await race(database, first, cancel(made))
            assert moved == 1
            assert job.state == at_last
            path = ["queued", "running", is_next, *["cancelled"] * (at_last == "cancelled")]
            assert await ended(database, made) == (at_last, path)
            assert await made.runner.end(made.claimed) is None

    asyncio.run(scenario())


@pytest.mark.parametrize(("by", "nothing"), [("lease", 0), ("lock", None)])
def test_cancel_and_then_reap(database_url: str, by: str, nothing: int | None) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "running")
            if by == "lease":
                await elapse(database, 31)
            second = settle if by == "lease" else reap(made)
            # A pass leaves what is locked to the next one.
            assert (await race(database, cancel(made), second, waits=False))[1] == nothing
            assert (await ended(database, made))[0] == "cancel_requested"
            assert await second(database) == 1
            assert await ended(database, made) == (
                "cancelled",
                ["queued", "running", "cancel_requested", "cancelled"],
            )

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("begins", "seconds", "is_next"), [("queued", 50, "expired"), ("running", 100, "failed")]
)
def test_deadline_and_cancel(database_url: str, begins: Any, seconds: float, is_next: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, begins)
            await elapse(database, seconds)
            moved, job = await race(database, settle, cancel(made))
            assert (moved, job.state) == (1, is_next)
            made = await placed(database, begins)
            await elapse(database, seconds)
            _, moved = await race(database, cancel(made), settle, waits=False)
            assert moved == 0
            assert await state(database, made.job.job_id) == "cancelled"

    asyncio.run(scenario())


def test_renewal_and_then_cancel(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "running")
            renewal, job = await race(
                database, lambda other: made.runner.on(other).renew(made.claimed), cancel(made)
            )
            assert (renewal.lost, renewal.cancelled, renewal.busy) == ([], [], [])
            assert job.state == "cancel_requested"
            assert (await made.runner.renew(made.claimed)).cancelled == [made.job.job_id]

    asyncio.run(scenario())


def test_cancel_and_then_renewal(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "running")
            _, renewal = await race(
                database, cancel(made), lambda _: made.runner.renew(made.claimed), waits=False
            )
            assert (renewal.lost, renewal.cancelled, renewal.busy) == ([], [], [made.job.job_id])
            await elapse(database, 20)
            assert (await made.runner.renew(made.claimed)).cancelled == [made.job.job_id]
            await elapse(database, 20)  # its lease holds for as long as its runner needs to stop it
            assert await settle(database) == 0
            assert await made.runner.end(made.claimed, "failed") == "cancelled"
            assert (await made.runner.renew(made.claimed)).lost == [made.job.job_id]

    asyncio.run(scenario())


@pytest.mark.parametrize(("begins", "is_next"), [("queued", "cancelled"), ("running", "cancel_requested")])
def test_cancel_twice_at_the_same_time(database_url: str, begins: Any, is_next: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, begins)
            jobs = await race(database, cancel(made), cancel(made))
            assert jobs[0] == jobs[1]
            assert (await ended(database, made))[1][-2:] == [begins, is_next]
            noted = await database.fetch("SELECT action, subject FROM audit")
            assert noted == [{"action": "job.cancel", "subject": made.job.job_id}]

    asyncio.run(scenario())
