"""Forgetting what was kept long enough, in small batches.

Each command forgets at most `limit` rows and returns how many; fewer mean that nothing else was to be had.
What isn't final is never touched, and what somebody holds is left to the next time.
"""

from __future__ import annotations

from typing import Final

from headrace.database import Database, queries

_SQL: Final = queries("retention")


async def prune_results(database: Database, limit: int) -> int:
    """Results past the time that they were given; their jobs stay."""
    return (await database.fetch(_SQL["prune_results"], {"limit": limit}))[0]["pruned"]


async def prune_jobs(database: Database, after_s: float, limit: int) -> int:
    """Jobs that ended so many seconds ago, with their events.

    One whose result is still kept, or that an idempotency key still stands for, stays as long as that.
    """
    return await _prune(database, "prune_jobs", after_s, limit)


async def prune_items(database: Database, after_s: float, limit: int) -> int:
    """Items of jobs that are gone, of at most `limit` of those; returns of how many.

    A gateway of an earlier release forgets jobs without them.

    Args:
        database: an open one.
        after_s: seconds for which jobs are kept after their end.
        limit: how many jobs.
    """
    return await _prune(database, "prune_items", after_s, limit)


async def prune_keys(database: Database, limit: int) -> int:
    """Idempotency keys past the time that they were given."""
    return (await database.fetch(_SQL["prune_keys"], {"limit": limit}))[0]["pruned"]


async def prune_batches(database: Database, after_s: float, limit: int) -> int:
    """Batches that were submitted so many seconds ago and of which no job is left."""
    return await _prune(database, "prune_batches", after_s, limit)


async def prune_flows(database: Database, limit: int) -> int:
    """What fair queueing remembers of owners that have nothing left to be fair about."""
    return (await database.fetch(_SQL["prune_flows"], {"limit": limit}))[0]["pruned"]


async def prune_audit(database: Database, after_s: float, limit: int) -> int:
    """What was noted so many seconds ago of who changed what."""
    return await _prune(database, "prune_audit", after_s, limit)


async def _prune(database: Database, name: str, after_s: float, limit: int) -> int:
    return (await database.fetch(_SQL[name], {"after_s": float(after_s), "limit": limit}))[0]["pruned"]
