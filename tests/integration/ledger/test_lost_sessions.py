"""Runners that are lost, by the locks of their sessions: what is moved, and what is left alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime

import psycopg
import pytest
from harness.ledger import (
    LANE,
    Runner,
    check_ledger,
    elapse,
    make_owner,
    opened,
    row,
    state,
    story,
    submit_many,
    submit_one,
)

from headrace import registry
from headrace.database import Database
from headrace.domain import RunnerInfo
from headrace.ledger import cancelling, settling

ACTOR = "gateway:test"


@asynccontextmanager
async def holding(url: str, session_id: str) -> AsyncGenerator[None]:
    """The session's lock is held meanwhile."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SELECT hold_session_v1(%s::uuid)", [session_id])
        yield


@asynccontextmanager
async def renewing(url: str, session_id: str) -> AsyncGenerator[None]:
    """All leases have been renewed meanwhile, which is committed at the end."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute(
            "SELECT renew_v1(%(id)s::uuid, array_agg(id), array_agg(token), array_agg(attempt), '{}', 30)"
            " FROM job WHERE session_id = %(id)s::uuid",
            {"id": session_id},
        )
        assert await cursor.fetchall() == []
        yield


async def register(database: Database, runner: Runner) -> None:
    info = RunnerInfo(runner.session_id, None, "default", {LANE: "i1"})
    await registry.register(database, info, [])


async def held_by(database: Database, connections: int) -> list[str]:
    """Whose locks are held, once so many connections hold one: a lock goes a moment after its connection."""
    async with asyncio.timeout(20):
        while len(held := (await settling.held_sessions(database)).session_ids) != connections:
            await asyncio.sleep(0.01)
    return held


async def mark_of(database: Database, runner: Runner) -> datetime | None:
    return (await settling.session_marks(database, [runner.session_id]))[runner.session_id]


async def reap(database: Database, runner: Runner, mark: datetime | None = None) -> int | None:
    mark = mark or await mark_of(database, runner)
    assert mark is not None
    return await settling.reap_session(database, runner.session_id, mark, ACTOR)


def test_a_session_is_held_for_as_long_as_its_connection(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runners = [Runner(database) for _ in range(3)]
            for runner in runners[:2]:
                await register(database, runner)
            async with holding(database_url, runners[0].session_id):
                # Two connections at once: the new one of a runner, and the old one, half dead.
                async with holding(database_url, runners[0].session_id):
                    assert await held_by(database, 2) == [runners[0].session_id] * 2
                await registry.unregister(database, runners[0].session_id)  # it drains, and has jobs
                assert await held_by(database, 1) == [runners[0].session_id]
                held = await settling.held_sessions(database)
                again = await settling.held_sessions(database)
                assert (again.backend, again.server_started_at) == (held.backend, held.server_started_at)
            assert await held_by(database, 0) == []

    asyncio.run(scenario())


def test_what_a_lost_runner_ran_waits_again_or_ends(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            runner, other = Runner(database), Runner(database)
            again = await submit_one(database, owner)
            last = await submit_one(database, owner, attempts=1)
            cancelled = await submit_one(database, owner)
            late = await submit_one(database, owner, total_s=70.0)
            jobs = {job.job_id: job for job in await runner.claim(4)}
            await cancelling.cancel(database, cancelled, owner, "key:k")
            await elapse(database, 69.9, late)
            await submit_one(database, owner)
            kept = await other.claim_one()

            assert await mark_of(database, other) is not None
            assert await reap(database, runner) == 4
            states = {job_id: await state(database, job_id) for job_id in (again, last, cancelled, late)}
            assert states == {again: "queued", last: "failed", cancelled: "cancelled", late: "failed"}
            assert (await row(database, last))["error_category"] == "attempts-exhausted"
            assert (await row(database, late))["error_category"] == "deadline-exceeded"
            assert (await story(database, again))[-1] == (
                "queued",
                1,
                ACTOR,
                f"runner {runner.session_id} was lost",
            )
            assert await state(database, kept.job_id) == "running"
            assert await mark_of(database, runner) is None
            # What it says afterwards is void.
            renewal = await runner.renew(*jobs.values())
            assert set(renewal.lost) == jobs.keys()
            assert {await runner.end(job) for job in jobs.values()} == {None}
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_runner_that_was_heard_of_keeps_its_jobs(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 2)
            runner = Runner(database)
            first = await runner.claim_one()
            mark = await mark_of(database, runner)
            assert (await runner.renew(first)).lost == []
            assert await reap(database, runner, mark) == 0
            mark = await mark_of(database, runner)
            await runner.claim_one()
            assert await reap(database, runner, mark) == 0
            assert {job["state"] for job in (await check_ledger(database)).values()} == {"running"}

    asyncio.run(scenario())


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_runner_that_holds_its_lock_again_keeps_its_jobs(database_url: str, is_registered: bool) -> None:
    """Also one whose row in the registry somebody has deleted."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            if is_registered:
                await register(database, runner)
            await submit_one(database, await make_owner(database))
            job = await runner.claim_one()
            async with holding(database_url, runner.session_id):
                assert await reap(database, runner) == 0
            assert await state(database, job.job_id) == "running"

    asyncio.run(scenario())


def test_a_renewal_on_its_way_is_not_overtaken(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_many(database, await make_owner(database), 3)
            runner = Runner(database)
            await runner.claim(3)
            mark = await mark_of(database, runner)
            async with renewing(database_url, runner.session_id):
                began = time.monotonic()
                assert await reap(database, runner, mark) is None
                assert time.monotonic() - began < 2
            assert await reap(database, runner, mark) == 0
            assert {job["state"] for job in (await check_ledger(database)).values()} == {"running"}
            assert await reap(database, runner) == 3

    asyncio.run(scenario())


def test_racing_maintainers_move_each_job_once(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, 8) as database:
            owner = await make_owner(database)
            for _ in range(5):
                runner = Runner(database)
                await submit_many(database, owner, 20)
                claimed = await runner.claim(20)
                mark = await mark_of(database, runner)
                moved = await asyncio.gather(*(reap(database, runner, mark) for _ in range(8)))
                assert sorted(one for one in moved if one) == [20]
                for job in claimed:
                    assert [one for one, *_ in await story(database, job.job_id)] == [
                        "queued",
                        "running",
                        "queued",
                    ]
                    await cancelling.cancel(database, job.job_id, owner, "key:k")
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_lost_runner_and_a_late_word_of_it_do_not_wait_for_each_other(database_url: str) -> None:
    """Finishes, renewals and cancels of the same rows at the same time: none fails, and one of them wins."""

    async def scenario() -> None:
        async with opened(database_url, 8) as database:
            owner = await make_owner(database)
            for _ in range(10):
                runner = Runner(database)
                await submit_many(database, owner, 8, attempts=9)
                jobs = await runner.claim(8)
                mark = await mark_of(database, runner)
                await asyncio.gather(
                    *(runner.end(job) for job in jobs[:4]),
                    runner.renew(*jobs),
                    reap(database, runner, mark),
                    *(cancelling.cancel(database, job.job_id, owner, "key:k") for job in jobs[4:6]),
                )
                if mark := await mark_of(database, runner):
                    assert await reap(database, runner, mark)
                for job in jobs:
                    await cancelling.cancel(database, job.job_id, owner, "key:k")
            states = {job["state"] for job in (await check_ledger(database)).values()}
            assert states <= {"succeeded", "cancelled"}

    asyncio.run(scenario())
