"""Doing jobs again: a new job, once for each old one, with what that was submitted with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from headrace.database import Database, queries
from headrace.domain import State
from headrace.ids import uuid7
from headrace.ledger.submission import NewJob
from headrace.settings import Settings

RETRYABLE: Final[frozenset[State]] = frozenset({"failed", "expired", "cancelled"})
"""States in which a job can be done again."""

_SQL: Final = queries("retrying")
_JOBS: Final = queries("jobs")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a new job is held to, as in `NewJob`."""

    most_outstanding: int
    most_waiting: int
    most_cost: float | None = None
    most_age_s: float | None = None


def bounds_of(settings: Settings, most_outstanding: int | None = None) -> Bounds:
    """The bounds of an owner and of lanes that have none of their own.

    Args:
        settings: the site's.
        most_outstanding: the owner's own.
    """
    return Bounds(
        most_outstanding=most_outstanding or settings.owner_jobs,
        most_waiting=settings.backlog,
        most_cost=settings.backlog_cost or None,
        most_age_s=settings.backlog_age or None,
    )


class Original(msgspec.Struct, frozen=True, kw_only=True):
    """A job with what it was submitted with.

    Args:
        retried_as: the job that does it again already.
        input: empty where it can't be done again.
        queue_s: how long it could wait for its first start.
        total_s: how long it had until its deadline.
    """

    job_id: str
    owner_id: str
    function: str
    interface: str
    state: State
    retried_as: str | None
    input: bytes
    digest: bytes
    cost: float
    weight: float
    attempts: int
    request_id: str
    traceparent: str
    queue_s: float
    total_s: float
    overdue: bool = False

    @property
    def can_be_retried(self) -> bool:
        """Whether it has ended without a result, and hasn't been done again."""
        return self.state in RETRYABLE and self.retried_as is None

    def again(
        self,
        bounds: Bounds,
        *,
        actor: str,
        key_id: str | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> NewJob:
        """The job that does it again: the same input, cost, weight and attempts, as much time from now on.

        Args:
            bounds: those in force, as for any job.
            actor: who wants it.
            key_id: the key with which it is asked for.
            request_id: of the request that asks for it; by default that of the old job.
            traceparent: the same of the trace.
        """
        return NewJob(
            job_id=uuid7(),
            owner_id=self.owner_id,
            function=self.function,
            interface=self.interface,
            input=self.input,
            digest=self.digest,
            cost=self.cost,
            weight=self.weight,
            attempts=self.attempts,
            queue_s=self.queue_s,
            total_s=self.total_s,
            most_outstanding=bounds.most_outstanding,
            most_waiting=bounds.most_waiting,
            most_cost=bounds.most_cost,
            most_age_s=bounds.most_age_s,
            key_id=key_id,
            request_id=self.request_id if request_id is None else request_id,
            traceparent=self.traceparent if traceparent is None else traceparent,
            retry_of=self.job_id,
            actor=actor,
        )


async def original(database: Database, job_id: str, owner_id: str | None, actor: str) -> Original | None:
    """A job of this owner; None when it is unknown or somebody else's.

    Args:
        database: an open one.
        job_id: a UUID.
        owner_id: None for an operator, who sees all.
        actor: in whose name it is moved on when it is past its time.
    """
    found = await originals(database, [job_id], owner_id)
    if found and found[0].overdue:
        await database.fetch(_JOBS["settle_one"], {"job_id": job_id, "actor": actor})
        found = await originals(database, [job_id], owner_id)
    return found[0] if found else None


async def originals(
    database: Database, job_ids: Sequence[str], owner_id: str | None = None
) -> list[Original]:
    """Those of these jobs that there are, in the order of their ids."""
    rows = await database.fetch(_SQL["originals"], {"job_ids": list(job_ids), "owner_id": owner_id})
    return msgspec.convert(rows, list[Original])
