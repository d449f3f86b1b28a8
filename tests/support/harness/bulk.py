"""Commands of operators on many jobs, in one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.ledger import (
    INTERFACE,
    LANE,
    Runner,
    outcome,
)
from headrace.database import Database
from headrace.ledger import bulk
from headrace.ledger.bulk import Command, Selection, Tally
from headrace.ledger.retrying import Bounds

ADA = "operator:ada"
OTHER = "other"
BOUNDS = Bounds(most_outstanding=1000, most_waiting=1000)


async def named(database: Database, name: str) -> str:
    rows = await database.fetch("INSERT INTO owner (name) VALUES (%s) RETURNING id::text AS id", [name])
    return rows[0]["id"]


async def register(database: Database, *names: str, interface: str = INTERFACE) -> None:
    for name in names:
        await database.fetch("SELECT register_function_v1(%s, %s, 'r', '{}')", [name, interface])


async def fail(database: Database, job_ids: Sequence[str], category: str = "broken") -> None:
    """End all that waits in the lane so."""
    runner = Runner(database)
    claimed = await runner.claim(len(job_ids))
    assert {job.job_id for job in claimed} == set(job_ids)
    await runner.finish(*(outcome(job, "failed", category=category) for job in claimed))


async def carry_out(database: Database, command: Command, **options: Any) -> Tally:
    found = await bulk.find(database, command.kind, command.selection, command.interface)
    return await bulk.run(database, command, found, actor=ADA, **options)


def cancelling(**only: Any) -> Command:
    return Command("cancel", Selection(**only), bulk.cancel_these)


def retrying(bounds: Bounds = BOUNDS, *, is_served: bool = True, **only: Any) -> Command:
    return Command("retry", Selection(**only), bulk.retry_with(bounds, lambda _old: is_served))


def moving(**only: Any) -> Command:
    selection = Selection(function=LANE, **only)
    return Command("move", selection, bulk.move_to(LANE, OTHER), INTERFACE, {"to": OTHER})
