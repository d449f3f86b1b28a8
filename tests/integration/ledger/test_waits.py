"""How long accepted jobs are told to wait. The lane starts 2 jobs in a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from harness.ledger import make_owner, new_job, opened, submit_many
from harness.places import come, set_rate

from headrace.database import Database
from headrace.ledger.submission import submit

BOUND = 10
RATE = 2.0
Scenario = Callable[[Database, str], Awaitable[None]]


def run(url: str, scenario: Scenario, *, full: bool = True) -> None:
    """Run a scenario with an owner whose jobs fill the lane."""

    async def prepared() -> None:
        async with opened(url) as database:
            owner = await make_owner(database)
            await set_rate(database, RATE)
            if full:
                await submit_many(database, owner, BOUND, most_waiting=BOUND)
            await scenario(database, owner)

    asyncio.run(prepared())


def test_accepted_jobs_are_told_their_wait(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        receipts = await submit(database, [new_job(owner) for _ in range(9)])
        waits = [receipt.wait_s or 0 for receipt in receipts]
        assert waits == pytest.approx([0, *((n + 0.5) / RATE for n in range(1, 9))])
        later = await come(database, owner)
        assert later.wait_s == pytest.approx(9.5 / RATE)
        # Another owner's first job goes beside the first owner's first ones.
        other = await make_owner(database)
        beside = await come(database, other)
        assert beside.wait_s == 0
        # His second one waits for the first of both.
        assert (await come(database, other)).wait_s == pytest.approx(2.5 / RATE)
        await set_rate(database, None)
        assert (await come(database, owner)).wait_s is None

    run(database_url, scenario, full=False)


def test_ended_jobs_are_no_work_ahead(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        await database.execute("DELETE FROM procrastinate_jobs")
        await database.execute("DELETE FROM job_event")
        await database.execute("DELETE FROM job")
        assert (await come(database, owner)).wait_s == 0

    run(database_url, scenario)
