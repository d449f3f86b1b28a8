"""Places in line without a runner: a lane's rate as a test says, and time that passes for places."""

from __future__ import annotations

from typing import Any

from harness.ledger import LANE, new_job
from headrace.database import Database, Row
from headrace.ledger.submission import Receipt, submit

_LOOK = """
INSERT INTO lane_look (at) VALUES (clock_timestamp()) ON CONFLICT (is_only) DO UPDATE SET at = excluded.at
"""
_SET_RATE = (
    "INSERT INTO lane_pace (lane, waiting, waiting_work, rate, is_measured, starts, work, refreshed_at)"
    " VALUES (%(lane)s, 0, 0, %(rate)s, true, 0, 0, clock_timestamp())"
    " ON CONFLICT (lane) DO UPDATE SET rate = excluded.rate"
)
_LOCK = (
    "SELECT o.lane, pg_advisory_xact_lock(line_lock_v1(o.lane))"
    " FROM (SELECT DISTINCT lane FROM place ORDER BY lane) AS o"
)
_ELAPSE = (
    "UPDATE place SET due_at = due_at - make_interval(secs => %(seconds)s),"
    " told_at = told_at - make_interval(secs => %(seconds)s)"
    " WHERE lane = ANY (%(lanes)s)"
)
_PLACES = (
    "SELECT id::text AS id, owner_id::text AS owner_id, lane, cost, in_front, idempotency_key,"
    " extract(epoch FROM due_at - clock_timestamp())::double precision AS due_s,"
    " extract(epoch FROM told_at - clock_timestamp())::double precision AS told_s"
    " FROM place ORDER BY due_at, id"
)
_SHARE = "SELECT share FROM line WHERE lane = %s AND owner_id = %s::uuid AND weight = 1"


async def set_rate(database: Database, rate: float | None, lane: str = LANE) -> None:
    """Say how much work a lane does in a second; None: nobody knows."""
    await database.execute(_SET_RATE, {"lane": lane, "rate": rate})
    await database.execute(_LOOK)


async def elapse_places(database: Database, seconds: float) -> None:
    """Let so much time pass for all places."""
    async with database.transaction(within=10) as transaction:
        lanes = [row["lane"] for row in await transaction.fetch(_LOCK)]
        await transaction.fetch(_ELAPSE + " RETURNING id", {"seconds": seconds, "lanes": lanes})


async def places(database: Database) -> list[Row]:
    """All places, by when they are due."""
    return await database.fetch(_PLACES)


async def share(database: Database, owner_id: str) -> float:
    """How many places of an owner's line come back."""
    return (await database.fetch(_SHARE, [LANE, owner_id]))[0]["share"]


async def come(database: Database, owner_id: str, **changes: Any) -> Receipt:
    """One call."""
    (receipt,) = await submit(database, [new_job(owner_id, **changes)])
    return receipt


async def refused(database: Database, owner_id: str, **changes: Any) -> Receipt:
    """One call that is refused and gets a place."""
    receipt = await come(database, owner_id, **changes)
    assert receipt.outcome not in ("accepted", "replayed", "quota-exceeded"), receipt
    assert receipt.place is not None, receipt
    assert 0 < (receipt.due_s or 0) <= 600, receipt
    return receipt
