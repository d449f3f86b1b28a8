"""Moving on what is past its time, and mending what only a hand in the database can break."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from headrace.database import Database, queries

_SQL: Final = queries("settling")


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass has moved.

    Args:
        now: the database's clock.
        expired: jobs that could not be started in time.
        failed: jobs past their deadline, or lost at their last start.
        cancelled: jobs whose cancel was requested and whose runner is gone.
        requeued: jobs that wait for another start, as their runner's lease ran out.
    """

    now: datetime
    expired: int
    failed: int
    cancelled: int
    requeued: int


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """Orphans that were found: queue entries without a waiting job, waiting jobs without an entry."""

    entries_deleted: int
    entries_made: int


class HeldSessions(msgspec.Struct, frozen=True, kw_only=True):
    """Whose locks are held, and which backend of which start of the server says so."""

    backend: int
    server_started_at: datetime
    session_ids: list[str]


async def settle(
    database: Database, actor: str, *, reap: bool = True, seen_at: datetime | None = None, limit: int = 500
) -> Settled | None:
    """One pass over all jobs that are past their time; None while another process is at it.

    Args:
        database: an open one.
        actor: who does it, for the jobs' events.
        reap: whether a lease that has run out counts: not while runners may have been unable to renew it.
        seen_at: when it must have, by the database's clock: what that clock has been found right at. None is
            now.
        limit: jobs at most.
    """
    parameters = {"actor": actor, "reap": reap, "seen_at": seen_at, "limit": limit}
    rows = await database.fetch(_SQL["settle"], parameters)
    return msgspec.convert(rows[0], Settled) if rows else None


async def count(database: Database, *, with_cost: bool) -> bool:
    """Set right the figures that stand in for counts of long lanes and of owners with many jobs.

    Args:
        database: an open one.
        with_cost: whether cost or age are bounded in lanes that have no bounds of their own.

    Returns:
        False while another process is at it.
    """
    return (await database.fetch(_SQL["count"], {"with_cost": with_cost}))[0]["counted"]


async def sweep(database: Database, limit: int = 500) -> Swept:
    """Delete queue entries without a job, and make those that jobs lack."""
    return msgspec.convert((await database.fetch(_SQL["sweep"], {"limit": limit}))[0], Swept)


async def forget_runners(database: Database) -> int:
    """Forget runners that have been silent for a week; returns how many."""
    return (await database.fetch(_SQL["forget_runners"]))[0]["forgotten"]


async def held_sessions(database: Database) -> HeldSessions:
    """The runners that hold their sessions' locks now."""
    return msgspec.convert((await database.fetch(_SQL["held_sessions"]))[0], HeldSessions)


async def session_marks(database: Database, session_ids: Sequence[str]) -> dict[str, datetime | None]:
    """What each renewal and each claim of a runner changes, by session; None for one that runs nothing."""
    rows = await database.fetch(_SQL["session_marks"], {"session_ids": list(session_ids)})
    return {row["session_id"]: row["mark"] for row in rows}


async def reap_session(database: Database, session_id: str, mark: datetime, actor: str) -> int | None:
    """Have what a lost runner ran start again, or end.

    Args:
        database: an open one.
        session_id: the runner's.
        mark: the session's, as it was when the runner was last heard of.
        actor: who does it, for the jobs' events.

    Returns:
        How many jobs were moved: none if the mark has changed, or the lock is held again. None when a row was
        locked, maybe by a renewal: nothing was moved.
    """
    params = {"session_id": session_id, "mark": mark, "actor": actor}
    return (await database.fetch(_SQL["reap_session"], params))[0]["moved"]
