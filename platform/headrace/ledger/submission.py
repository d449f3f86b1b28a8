"""Accepting jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from headrace.database import Database, queries
from headrace.domain import State

_SQL: Final = queries("submission")
KEY_TTL_S: Final = 86_400.0
"""How long an idempotency key is remembered unless somebody says otherwise."""

Decision = Literal[
    "accepted",
    "replayed",
    "key-conflict",
    "not-retryable",
    "quota-exceeded",
    "backlog-full",
    "backlog-costly",
    "backlog-old",
    "no-capacity",
]


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What an idempotency key stands for: a job, which may be gone, and the digest of its input."""

    job_id: str
    digest: bytes


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A call that shall become a job.

    Args:
        digest: SHA-256 of the input as JSON with sorted keys.
        cost: of the input, by the function's declaration.
        attempts: how many charged starts it is allowed.
        queue_s: seconds within which its first start must come.
        total_s: seconds until its deadline.
        most_outstanding: refused when its owner has so many unfinished jobs.
        most_waiting: refused when so many wait in its lane, where the lane has no bound of its own.
        most_cost: the same of their cost together; None is no bound.
        most_age_s: the same of the longest wait so far.
        weight: its share against other owners' jobs; costs count by 1/weight.
        retry_of: the job that it does again. That may be done once: whoever asks again gets the same job.
        actor: who submits it, for its events; by default its key.
        waiter: the gateway that will wait for its end.
        attempt: starts that it has had, as a direct call.
        charged: those among them that count.
        alone: its last start ended with its process, so nothing may run beside the next one.
        place: the place in line that it comes with, as a UUID; one that isn't worth anything is passed over.
    """

    job_id: str
    owner_id: str
    function: str
    interface: str
    input: bytes
    digest: bytes
    cost: float
    attempts: int
    queue_s: float
    total_s: float
    most_outstanding: int
    most_waiting: int
    most_cost: float | None = None
    most_age_s: float | None = None
    key_id: str | None = None
    weight: float = 1.0
    request_id: str = ""
    traceparent: str = ""
    idempotency_key: str | None = None
    retry_of: str | None = None
    actor: str | None = None
    waiter: str | None = None
    attempt: int = 0
    charged: int = 0
    alone: bool = False
    place: str | None = None


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a submission.

    Args:
        job_id: the job that stands for it; of a replay, or of a conflict, the one that was there before.
        outcome: `accepted`, or `replayed` as it was there already; otherwise why it is refused.
        outstanding: its owner's unfinished jobs before, counted up to the owner's bound.
        wait_s: seconds until it should be started, of one that was accepted just now; None: not known.
        place: of one that is refused for want of room: its place in line, good for one call from a second
            before it is due to five seconds after. None: it has none.
        due_s: of the same: whole seconds after which there should be room, at most 600, with jitter; None:
            not known.
        is_placed: a place that it came with has counted: it was accepted with it, or refused too early
            (`place` is then the same), or refused all the same (then a new one).
    """

    job_id: str
    outcome: Decision
    state: State | None
    created_at: datetime | None
    queue_deadline_at: datetime | None
    deadline_at: datetime | None
    outstanding: int
    wait_s: float | None = None
    place: str | None = None
    due_s: float | None = None
    is_placed: bool = False


async def submit(
    database: Database, jobs: Sequence[NewJob], *, key_ttl_s: float = KEY_TTL_S
) -> list[Receipt]:
    """Accept jobs in one transaction; a receipt for each, in their order.

    Args:
        database: an open one.
        jobs: each with an id of its own.
        key_ttl_s: how long an idempotency key is remembered.
    """
    rows = await database.fetch(
        _SQL["submit"],
        {
            "ids": [job.job_id for job in jobs],
            "owner_ids": [job.owner_id for job in jobs],
            "key_ids": [job.key_id for job in jobs],
            "functions": [job.function for job in jobs],
            "interfaces": [job.interface for job in jobs],
            "inputs": [job.input for job in jobs],
            "digests": [job.digest for job in jobs],
            "costs": [float(job.cost) for job in jobs],
            "weights": [float(job.weight) for job in jobs],
            "attempts": [job.attempts for job in jobs],
            "started": [job.attempt for job in jobs],
            "charged": [job.charged for job in jobs],
            "alone": [job.alone for job in jobs],
            "queue_s": [float(job.queue_s) for job in jobs],
            "total_s": [float(job.total_s) for job in jobs],
            "most_outstanding": [job.most_outstanding for job in jobs],
            "most_waiting": [job.most_waiting for job in jobs],
            "most_costs": [job.most_cost for job in jobs],
            "most_ages_s": [job.most_age_s for job in jobs],
            "request_ids": [job.request_id for job in jobs],
            "traceparents": [job.traceparent for job in jobs],
            "idempotency_keys": [job.idempotency_key for job in jobs],
            "retries_of": [job.retry_of for job in jobs],
            "actors": [job.actor for job in jobs],
            "waiters": [job.waiter for job in jobs],
            "key_ttl_s": key_ttl_s,
            "places": [job.place for job in jobs],
        },
    )
    return msgspec.convert(rows, list[Receipt])


async def remembered(database: Database, owner_id: str, function: str, key: str) -> Remembered | None:
    """What an owner's idempotency key stands for; None where it is new, or not remembered any more."""
    rows = await database.fetch(_SQL["remembered"], {"owner_id": owner_id, "function": function, "key": key})
    return msgspec.convert(rows[0], Remembered) if rows else None
