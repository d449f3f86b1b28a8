"""Cancelling jobs."""

from __future__ import annotations

from typing import Final

from headrace.database import Database, queries
from headrace.ledger.reading import Job, find

_SQL: Final = queries("jobs")


async def cancel(database: Database, job_id: str, owner_id: str | None, actor: str) -> Job | None:
    """Cancel a job: one that waits at once, one that runs as soon as its execution has ended.

    Args:
        database: an open one.
        job_id: a UUID.
        owner_id: whose it must be; None for an operator.
        actor: who cancels, for its events.

    Returns:
        The job as it is afterwards, unchanged when it was final; None when it is unknown or somebody else's.
    """
    await database.fetch(_SQL["cancel"], {"job_id": job_id, "owner_id": owner_id, "actor": actor})
    return await find(database, job_id, owner_id, actor=actor)
