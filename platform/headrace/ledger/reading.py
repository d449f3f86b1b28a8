"""What owners ask about their jobs. Whoever asks for a job that is past its time moves it on first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

import msgspec

from headrace.database import Database, queries
from headrace.domain import State

_SQL: Final = queries("jobs")

INLINE: Final = 64 * 2**10
"""Bytes up to which a result is part of its job."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it stands.

    Args:
        attempt: the number of its newest start, 0 before the first.
        charged: starts that count against `attempts`.
        sequence: the number of its newest event.
        small_result: the output as JSON where it is small; see `result` for any.
        result_expired: it had a result, which is gone.
        batch_index: the place of its input in its batch, from 0 on.
        retry_of: the job that it does again.
        retried_as: the job that does it again.
        waited_s: how long it has waited in the queue.
        execution_s: how long its last execution took.
    """

    job_id: str
    owner_id: str
    function: str
    interface: str
    state: State
    attempt: int
    charged: int
    attempts: int
    created_at: datetime
    queue_deadline_at: datetime
    deadline_at: datetime
    first_started_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    progress: float | None
    progress_message: str
    progress_sequence: int
    error_category: str | None
    error_message: str | None
    error_errors: list[dict[str, Any]]
    result_size: int | None
    small_result: bytes | None
    result_expires_at: datetime | None
    result_expired: bool | None
    request_id: str
    batch_id: str | None = None
    batch_index: int | None = None
    sequence: int
    waited_s: float
    execution_s: float
    overdue: bool | None = False
    retry_of: str | None = None
    retried_as: str | None = None


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One transition of a job: when, from what to what, by whom and why."""

    sequence: int
    at: datetime
    from_state: State | None
    state: State
    attempt: int
    actor: str
    reason: str


class Only(TypedDict, total=False):
    """What jobs are listed; None is any.

    Args:
        state: only those in it.
        function: only its.
        batch_id: only this batch's.
        category: only those whose error is of it.
        dead: only those that failed or expired, and weren't done again.
    """

    state: State | None
    function: str | None
    batch_id: str | None
    category: str | None
    dead: bool


async def find(
    database: Database,
    job_id: str,
    owner_id: str | None,
    *,
    actor: str = "reader",
    within: float | None = None,
) -> Job | None:
    """A job of this owner; None when it is unknown or somebody else's.

    Args:
        database: an open one.
        job_id: a UUID.
        owner_id: None for an operator, who sees all.
        actor: in whose name it is moved on when it is past its time.
        within: seconds that each query may take; by default as long as any.
    """
    parameters = {"job_id": job_id, "owner_id": owner_id, "inline": INLINE}
    rows = await database.fetch(_SQL["find"], parameters, within=within)
    if rows and rows[0]["overdue"]:
        await database.fetch(_SQL["settle_one"], {"job_id": job_id, "actor": actor}, within=within)
        rows = await database.fetch(_SQL["find"], parameters, within=within)
    return msgspec.convert(rows[0], Job) if rows else None


async def list_jobs(
    database: Database,
    owner_id: str,
    *,
    before: str | None = None,
    limit: int = 50,
    **only: Unpack[Only],
) -> list[Job]:
    """An owner's jobs, newest first, without results.

    Args:
        database: an open one.
        owner_id: whose.
        before: only those that are older than this job.
        limit: at most so many.
        only: which of them.
    """
    rows = await database.fetch(
        _SQL["list"],
        {
            "owner_id": owner_id,
            "before": before,
            "limit": limit,
            "state": only.get("state"),
            "function": only.get("function"),
            "batch_id": only.get("batch_id"),
            "category": only.get("category"),
            "dead": only.get("dead", False),
        },
    )
    return msgspec.convert(rows, list[Job])


async def result(
    database: Database, job_id: str, owner_id: str | None, *, within: float | None = None
) -> bytes | None:
    """The output as JSON; None where there is none, or none any more.

    Args:
        database: an open one.
        job_id: a UUID.
        owner_id: None for an operator, who sees all.
        within: seconds that it may take; by default as long as any query.
    """
    rows = await database.fetch(_SQL["result"], {"job_id": job_id, "owner_id": owner_id}, within=within)
    return rows[0]["result"] if rows else None


async def result_piece(database: Database, job_id: str, at: int, length: int) -> bytes | None:
    """So many bytes of the output, from byte `at` on. Whose job it is must be known already."""
    rows = await database.fetch(_SQL["result_piece"], {"job_id": job_id, "at": at, "length": length})
    return rows[0]["piece"] if rows else None


async def events(database: Database, job_id: str, after: int = 0) -> list[JobEvent]:
    """The job's transitions with numbers over `after`. Whose job it is must be known already."""
    rows = await database.fetch(_SQL["events"], {"job_id": job_id, "after": after})
    return msgspec.convert(rows, list[JobEvent])


async def watch(database: Database, job_id: str, gateway_id: str, *, follow: bool) -> None:
    """Have a gateway notified when the job ends; with `follow`, of each step and of progress too.

    Read the job again afterwards: nothing is told of a job that has ended before.
    """
    await database.execute(_SQL["watch"], {"job_id": job_id, "gateway_id": gateway_id, "follow": follow})


async def standings(database: Database, job_ids: Sequence[str]) -> dict[str, tuple[State, int]]:
    """State and newest event number of each job."""
    rows = await database.fetch(_SQL["standings"], {"job_ids": list(job_ids)})
    return {row["job_id"]: (row["state"], row["sequence"]) for row in rows}
