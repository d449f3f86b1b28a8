"""Batches: many jobs that are accepted together, followed together and cancelled together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from headrace.database import ANSWER_WITHIN, Database, Transaction, queries
from headrace.domain import State
from headrace.errors import DatabaseError
from headrace.ledger.reading import INLINE
from headrace.ledger.retrying import Bounds

_SQL: Final = queries("batches")
_AT_ONCE: Final = 500
_LEAST_RATE: Final = 2**20
"""Bytes a second at which inputs are recorded at least."""
_TURN_S: Final = 60.0
"""Seconds for which the owner's batches before this one are waited for."""

Refusal = Literal[
    "key-conflict", "quota-exceeded", "backlog-full", "backlog-costly", "backlog-old", "no-capacity"
]


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that shall become jobs, all or none; the inputs themselves come apart.

    Args:
        digest: SHA-256 over the inputs' digests.
        costs: of each input, by the function's declaration.
        size: of all inputs, in bytes.
        attempts, queue_s, total_s, weight: of each job, as in `submission.NewJob`.
        most_outstanding, most_waiting, most_cost, most_age_s: bounds that all of it must keep, as there.
        key_ttl_s: how long the idempotency key is remembered, in seconds.
    """

    batch_id: str
    owner_id: str
    function: str
    interface: str
    digest: bytes
    costs: Sequence[float]
    size: int
    attempts: int
    queue_s: float
    total_s: float
    most_outstanding: int
    most_waiting: int
    key_ttl_s: float
    most_cost: float | None = None
    most_age_s: float | None = None
    key_id: str | None = None
    weight: float = 1.0
    request_id: str = ""
    traceparent: str = ""
    idempotency_key: str | None = None


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What there is before a batch.

    Args:
        outstanding: its owner's unfinished jobs, counted up to the owner's bound.
        refusal: why its lane takes nothing now; None where it does.
        most_waiting: the bound in force on what waits in the lane.
        most_cost: the same of its cost.
        due_s: where its lane takes nothing, seconds until it should; None: not known.
    """

    outstanding: int
    refusal: Refusal | None
    most_waiting: int
    most_cost: float | None
    due_s: float | None = None


class Part(msgspec.Struct, frozen=True):
    """Some of a batch's jobs, in the order of their inputs: parallel lists."""

    job_ids: list[str]
    inputs: list[bytes]
    digests: list[bytes]


class BatchReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch.

    Args:
        batch_id: the batch that stands for it; of a replay, or of a conflict, the one that was there before.
        refusal: why it isn't recorded; None where it is.
        is_replay: another submission under its key came first.
        created_at: when it was recorded just now; None where it was there already.
        outstanding: its owner's unfinished jobs before, counted up to the owner's bound.
        due_s: of one that is refused for want of room: whole seconds after which there should be some for all
            of it, at most 600; None: not known, or never. A batch gets no place in line.
    """

    batch_id: str
    refusal: Refusal | None = None
    is_replay: bool = False
    created_at: datetime | None = None
    outstanding: int = 0
    due_s: float | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it stands: of how many jobs, and whether any of them isn't final, or is past its time."""

    batch_id: str
    function: str
    size: int
    created_at: datetime
    is_running: bool
    is_overdue: bool = False


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one input, as far as anything did.

    Args:
        batch_index: the input's place in the batch, from 0 on.
        result_size: bytes of the output; None where there is none, or none any more.
        small_result: the output as JSON where it is small; `reading.result_piece` has any.
    """

    batch_index: int
    job_id: str
    state: State
    error_category: str | None
    error_message: str | None
    error_errors: list[dict[str, Any]]
    result_size: int | None
    result_expires_at: datetime | None
    small_result: bytes | None


class _Refused(Exception):
    """Rolls back what was opened."""


async def room(database: Database, owner_id: str, function: str, bounds: Bounds) -> Room:
    """What there is already, for whoever would rather know before the inputs have come."""
    rows = await database.fetch(
        _SQL["room"], {"owner_id": owner_id, "function": function, **msgspec.structs.asdict(bounds)}
    )
    return msgspec.convert(rows[0], Room)


def longest_s(batch: NewBatch) -> float:
    """Seconds that recording it may take: its turn, and the time that its size needs."""
    return _TURN_S + batch.size / _LEAST_RATE


async def submit_batch(
    database: Database,
    admissions: Database,
    batch: NewBatch,
    parts: AsyncIterator[Part],
    *,
    within: float | None = None,
) -> BatchReceipt:
    """Record a batch and all its jobs, or nothing of it. Repeating it with the same id changes nothing.

    Args:
        database: for one long transaction.
        admissions: for a short one meanwhile; another pool, or those who hold the last connections of the
            first might wait for each other.
        batch: with an id of its own.
        parts: its jobs, a few hundred at a time.
        within: seconds that it may take; by default `longest_s`.
    """
    receipt = BatchReceipt(batch_id=batch.batch_id)
    tag: float | None = None
    try:
        async with database.transaction(within=longest_s(batch) if within is None else within) as transaction:
            opened = await _open(transaction, batch)
            if opened["outcome"] != "accepted":
                return _found(batch, opened)
            admitted = await _admit(admissions, batch)
            receipt = BatchReceipt(
                batch_id=batch.batch_id,
                refusal=admitted["refusal"],
                outstanding=admitted["outstanding"],
                due_s=admitted["due_s"],
            )
            if receipt.refusal is not None:
                raise _Refused
            tag = float(admitted["tag"])
            await _fill(transaction, batch, parts, tag)
            (closed,) = await transaction.fetch(_SQL["close"], {"batch_id": batch.batch_id})
            receipt = msgspec.structs.replace(receipt, created_at=closed["created_at"])
    except _Refused:
        pass
    except BaseException:
        if tag is not None:
            with contextlib.suppress(DatabaseError):
                await _release(admissions, batch, tag)
        raise
    return receipt


async def find(database: Database, batch_id: str, owner_id: str, *, actor: str = "reader") -> Batch | None:
    """A batch of this owner; None when it is unknown or somebody else's.

    Args:
        database: an open one.
        batch_id: a UUID.
        owner_id: whose it must be.
        actor: in whose name jobs of it are moved on that are past their time, some hundreds at most.
    """
    parameters = {"batch_id": batch_id, "owner_id": owner_id}
    rows = await database.fetch(_SQL["find"], parameters)
    if rows and rows[0]["is_overdue"]:
        await database.fetch(_SQL["settle"], {"batch_id": batch_id, "actor": actor, "limit": _AT_ONCE})
        rows = await database.fetch(_SQL["find"], parameters)
    return msgspec.convert(rows[0], Batch) if rows else None


async def list_batches(database: Database, owner_id: str, before: str | None, limit: int) -> list[Batch]:
    """At most so many of an owner's batches, newest first, that are older than the batch `before`."""
    rows = await database.fetch(_SQL["list"], {"owner_id": owner_id, "before": before, "limit": limit})
    return msgspec.convert(rows, list[Batch])


async def counts(database: Database, batch_id: str) -> dict[State, int]:
    """How many of a batch's jobs are in each state. Whose batch it is must be known already."""
    rows = await database.fetch(_SQL["counts"], {"batch_id": batch_id})
    return {row["state"]: row["jobs"] for row in rows}


async def results(database: Database, batch_id: str, after: int, limit: int) -> list[BatchResult]:
    """At most so many of a batch's jobs behind the index `after`, in the order of the inputs. Likewise."""
    rows = await database.fetch(
        _SQL["results"], {"batch_id": batch_id, "after": after, "limit": limit, "inline": INLINE}
    )
    return msgspec.convert(rows, list[BatchResult])


async def cancel_batch(database: Database, batch_id: str, owner_id: str | None, actor: str) -> None:
    """Cancel what isn't finished of a batch.

    Args:
        database: an open one.
        batch_id: a UUID.
        owner_id: whose it must be; None for an operator.
        actor: who cancels, for the jobs' events.
    """
    parameters = {"batch_id": batch_id, "owner_id": owner_id, "actor": actor, "limit": _AT_ONCE}
    is_first = True
    # Some hundreds in each transaction: claims pass over what is locked.
    while (await database.fetch(_SQL["cancel"], {**parameters, "is_first": is_first}))[0]["jobs"]:
        is_first = False


async def _open(transaction: Transaction, batch: NewBatch) -> dict[str, Any]:
    rows = await transaction.fetch(
        _SQL["open"],
        {
            "batch_id": batch.batch_id,
            "owner_id": batch.owner_id,
            "key_id": batch.key_id,
            "function": batch.function,
            "size": len(batch.costs),
            "request_id": batch.request_id,
            "idempotency_key": batch.idempotency_key,
            "digest": batch.digest,
            "key_ttl_s": batch.key_ttl_s,
        },
    )
    return rows[0]


def _found(batch: NewBatch, opened: dict[str, Any]) -> BatchReceipt:
    found = opened["batch_id"]
    if opened["outcome"] == "key-conflict":
        return BatchReceipt(batch_id=found, refusal="key-conflict")
    return BatchReceipt(batch_id=found, is_replay=found != batch.batch_id)


async def _admit(database: Database, batch: NewBatch) -> dict[str, Any]:
    rows = await database.fetch(
        _SQL["admit"],
        {
            "owner_id": batch.owner_id,
            "function": batch.function,
            "costs": batch.costs,
            "weight": batch.weight,
            "most_outstanding": batch.most_outstanding,
            "most_waiting": batch.most_waiting,
            "most_cost": batch.most_cost,
            "most_age_s": batch.most_age_s,
            "queue_s": batch.queue_s,
        },
        within=ANSWER_WITHIN,
    )
    return rows[0]


async def _release(database: Database, batch: NewBatch, tag: float) -> None:
    """Give back what was reserved: the owner's next jobs would have to wait for it."""
    await database.fetch(
        _SQL["release"],
        {
            "owner_id": batch.owner_id,
            "function": batch.function,
            "costs": batch.costs,
            "weight": batch.weight,
            "tag": tag,
        },
    )


async def _fill(transaction: Transaction, batch: NewBatch, parts: AsyncIterator[Part], tag: float) -> None:
    first = 0
    async for part in parts:
        last = first + len(part.job_ids)
        rows = await transaction.fetch(
            _SQL["fill"],
            {
                "batch_id": batch.batch_id,
                "first": first,
                "interface": batch.interface,
                "ids": part.job_ids,
                "inputs": part.inputs,
                "digests": part.digests,
                "costs": batch.costs[first:last],
                "tag": tag,
                "weight": batch.weight,
                "attempts": batch.attempts,
                "queue_s": batch.queue_s,
                "total_s": batch.total_s,
                "traceparent": batch.traceparent,
            },
        )
        first, tag = last, rows[0]["tag"]
    assert first == len(batch.costs), "a batch is recorded whole"
