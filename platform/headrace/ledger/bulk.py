"""What operators do to many jobs at a time, picked by filters: cancel them, do them again, move them.

The work goes in chunks, each a transaction of its own, so a command that was interrupted is simply given
again: what was done doesn't match any more, or isn't changed by doing it twice. The audit tells of each
command what it was for and what came of it, and of each chunk which jobs it has changed: in one entry with
their ids, or, where they are done again, in one for each.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from headrace import audit
from headrace.database import Database, queries
from headrace.domain import State
from headrace.errors import DatabaseError, HeadraceError
from headrace.ids import uuid7
from headrace.ledger import retrying, submission
from headrace.ledger.retrying import Bounds, Original

Kind = Literal["cancel", "retry", "move"]

CHUNK: Final = 200
"""Jobs in one transaction, at most."""

_CHUNK_BYTES: Final = 8 * 2**20
_SQL: Final = queries("operators")


class Selection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which jobs a command is for, besides what its kind says; None is any.

    Args:
        function: only its jobs.
        owner: only this owner's, by name.
        state: only those in it.
        category: only those whose error is of it.
        batch_id: only this batch's.
        older_s: only those that were accepted so many seconds ago.
    """

    function: str | None = None
    owner: str | None = None
    state: State | None = None
    category: str | None = None
    batch_id: str | None = None
    older_s: float | None = None


class Found(msgspec.Struct, frozen=True):
    """How many jobs match, and when the newest of them may have been accepted."""

    matching: int
    before: datetime


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A job that ended without a result and wasn't done again."""

    job_id: str
    owner: str
    function: str
    state: State
    attempt: int
    category: str
    message: str
    created_at: datetime
    finished_at: datetime


@dataclass(slots=True)
class Tally:
    """How a command goes on.

    Args:
        seen: jobs that were looked at.
        changed: those among them that it changed.
        refused: those among the others that may be changed later, counted by why not now.
    """

    seen: int = 0
    changed: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True, slots=True)
class By:
    """Who does it, and the id of the command."""

    actor: str
    command_id: str


Apply = Callable[[Database, Sequence[str], By, Tally], Awaitable[None]]
"""Changes these jobs in the name of somebody, and counts."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be done to the jobs of a selection.

    Args:
        kind: picks them, with the selection.
        selection: which jobs.
        apply: what is done: `cancel_these`, or what `retry_with` and `move_to` make.
        interface: only those that were accepted for it.
        detail: more for the audit.
    """

    kind: Kind
    selection: Selection
    apply: Apply
    interface: str | None = None
    detail: dict[str, Any] = field(default_factory=dict[str, Any])


async def find(database: Database, kind: Kind, selection: Selection, interface: str | None = None) -> Found:
    """Count what a command would be for.

    Raises:
        HeadraceError: there is no such owner.
    """
    parameters = await _filters(database, kind, selection, interface)
    return msgspec.convert((await database.fetch(_SQL["count"], parameters))[0], Found)


async def dead(database: Database, selection: Selection, limit: int) -> list[DeadLetter]:
    """Jobs that failed or expired and weren't done again, the newest first.

    Raises:
        HeadraceError: there is no such owner.
    """
    parameters = {**await _filters(database, "retry", selection, None), "limit": limit}
    return msgspec.convert(await database.fetch(_SQL["dead"], parameters), list[DeadLetter])


async def run(
    database: Database,
    command: Command,
    found: Found,
    *,
    actor: str,
    limit: int | None = None,
    tell: Callable[[Tally], None] = lambda _tally: None,
) -> Tally:
    """Carry a command out, the oldest jobs first.

    Args:
        database: an open one.
        command: what to do.
        found: what `find` has said; jobs that were accepted afterwards are left alone.
        actor: who does it, for the audit and for the jobs' events.
        limit: jobs at most.
        tell: hears of each chunk.
    """
    tally = Tally()
    by = By(actor, uuid7())
    most = min(found.matching, limit) if limit is not None else None
    async with _audited(database, command, found, by, tally):
        async for job_ids in _chunks(database, command, found, most):
            await command.apply(database, job_ids, by, tally)
            tally.seen += len(job_ids)
            tell(tally)
    return tally


async def cancel_these(database: Database, job_ids: Sequence[str], by: By, tally: Tally) -> None:
    """Cancel jobs, as their owners would."""
    parameters = {"job_ids": list(job_ids), "actor": by.actor, "command_id": by.command_id}
    tally.changed += (await database.fetch(_SQL["cancel"], parameters))[0]["changed"]


def move_to(source: str, target: str) -> Apply:
    """Puts waiting jobs of the function `source` into the lane of `target`, which has the same interface."""

    async def move(database: Database, job_ids: Sequence[str], by: By, tally: Tally) -> None:
        lanes = {"from": source, "to": target}
        parameters = {"job_ids": list(job_ids), "actor": by.actor, "command_id": by.command_id, **lanes}
        tally.changed += (await database.fetch(_SQL["move"], parameters))[0]["changed"]

    return move


def retry_with(site: Bounds, is_served: Callable[[Original], bool]) -> Apply:
    """Does jobs again, each within its owner's quota and its lane's bounds.

    Args:
        site: the bounds of owners and lanes that have none of their own.
        is_served: whether a runner would execute it.
    """

    async def retry(database: Database, job_ids: Sequence[str], by: By, tally: Tally) -> None:
        olds = [old for old in await retrying.originals(database, job_ids) if old.can_be_retried]
        rows = await database.fetch(_SQL["bounds"], {"owner_ids": list({old.owner_id for old in olds})})
        own = {row["owner_id"]: row["most_outstanding"] for row in rows}
        tally.refused["no-runner"] += sum(not is_served(old) for old in olds)
        news = [old.again(_within(site, own[old.owner_id]), actor=by.actor) for old in olds if is_served(old)]
        for receipt in await submission.submit(database, news) if news else []:
            if receipt.outcome == "accepted":
                tally.changed += 1
            elif receipt.outcome != "replayed":  # somebody else was faster
                tally.refused[receipt.outcome] += 1

    return retry


def _within(site: Bounds, most_outstanding: int | None) -> Bounds:
    return msgspec.structs.replace(site, most_outstanding=most_outstanding or site.most_outstanding)


@contextlib.asynccontextmanager
async def _audited(
    database: Database, command: Command, found: Found, by: By, tally: Tally
) -> AsyncGenerator[None]:
    named = {"filter": msgspec.to_builtins(command.selection), **command.detail}

    async def note(stage: str, **more: Any) -> None:
        detail = {"stage": stage, **named, **more}
        action = f"jobs.{command.kind}"
        await audit.note(database, actor=by.actor, action=action, subject=by.command_id, detail=detail)

    await note("begun", matching=found.matching)
    try:
        yield
    except BaseException:
        with contextlib.suppress(DatabaseError):  # which may be why it ends here
            await note("interrupted", changed=tally.changed, refused=+tally.refused)
        raise
    await note("ended", changed=tally.changed, refused=+tally.refused)


async def _chunks(
    database: Database, command: Command, found: Found, most: int | None
) -> AsyncGenerator[list[str]]:
    """The ids of matching jobs, so many at a time as go well into one transaction."""
    parameters = await _filters(database, command.kind, command.selection, command.interface)
    after: str | None = None
    left = most
    while left is None or left > 0:
        limit = CHUNK if left is None else min(CHUNK, left)
        page = {**parameters, "before": found.before, "after": after, "limit": limit}
        rows = await database.fetch(_SQL["chunk"], page)
        if not rows:
            return
        chunk: list[str] = []
        size = 0
        for row in rows:
            size += row["size"]
            if chunk and size > _CHUNK_BYTES:
                break
            chunk.append(row["job_id"])
        yield chunk
        after = chunk[-1]
        left = None if left is None else left - len(chunk)


async def _filters(
    database: Database, kind: Kind, selection: Selection, interface: str | None
) -> dict[str, Any]:
    owner_id = None
    if selection.owner is not None:
        rows = await database.fetch(_SQL["owner"], {"owner": selection.owner})
        if not rows:
            raise HeadraceError(f"there is no owner {selection.owner!r}: see `headrace owners`")
        owner_id = rows[0]["owner_id"]
    return {
        "kind": kind,
        "function": selection.function,
        "interface": interface,
        "owner_id": owner_id,
        "state": selection.state,
        "category": selection.category,
        "batch_id": selection.batch_id,
        "older_s": selection.older_s or 0.0,
    }
