"""What runners do with jobs: claim, renew, report progress, finish."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from headrace.database import Database, queries, within
from headrace.domain import State

_SQL: Final = queries("execution")
_NOT_IN_TEXT: Final = "\x00"
_LONGEST_TEXT: Final = 4096
_MOST_ERRORS: Final = 100

Kind = Literal["succeeded", "failed", "retry", "lost", "displaced", "returned"]


class Lane(NamedTuple):
    """A function that a runner serves.

    Args:
        interface: only jobs that were accepted for this one.
        group: which of the runner's groups of slots it runs in, counted from 0.
        expected_s: how long an execution takes as a rule; what was started before and has less time left
            isn't started again.
    """

    function: str
    interface: str
    group: int
    expected_s: float = 0.0


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A job that the runner holds now, under `token`, until its lease runs out.

    `alone`: an earlier start ended with its process, so nothing may run beside this one.
    """

    job_id: str
    token: str
    attempt: int
    charged: int
    function: str
    input: bytes
    owner_id: str
    remaining_s: float
    waited_s: float
    request_id: str
    traceparent: str
    alone: bool


class Held(NamedTuple):
    """A job that the runner believes to hold."""

    job_id: str
    token: str
    attempt: int


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """What a renewal found.

    Args:
        lost: not the runner's any more: stop them, and discard what comes of them.
        cancelled: their cancel was requested: stop them.
        busy: locked by somebody at the moment, and not renewed this time.
        given_back: how many the runner held without knowing, as the reply to a claim was lost.
    """

    lost: list[str]
    cancelled: list[str]
    busy: list[str] = []
    given_back: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a start ended.

    Args:
        kind: `succeeded` or `failed` for good; `retry` after a passing failure; `lost` with its process;
            `displaced`, as its process was killed for another call, and `returned`, as it was given back:
            neither is its own fault, nor charged.
        category: a problem code; what the job ends with when it may not be started again.
        message: fit for the public.
        errors: (JSON Pointer, message) pairs.
        execution_s: how long it ran.
        not_before: of `retry` and `returned`, the instant of this process' `time.monotonic()` before which
            another start would come to nothing, too; 0: none is known.
    """

    job_id: str
    token: str
    attempt: int
    kind: Kind
    output: bytes | None = None
    category: str = ""
    message: str = ""
    errors: tuple[tuple[str, str], ...] = ()
    execution_s: float = 0.0
    not_before: float = 0.0


class Report(NamedTuple):
    """How far a job is: a fraction from 0 to 1."""

    job_id: str
    token: str
    attempt: int
    fraction: float
    message: str


async def claim(
    database: Database,
    *,
    session_id: str,
    claim_id: str,
    lanes: Sequence[Lane],
    free: Sequence[int],
    lease_s: float,
    alone: int = 1,
) -> list[Claimed]:
    """Take jobs that wait, at most as many as there are free slots.

    Args:
        database: an open one.
        session_id: the runner's.
        claim_id: a new UUID, to be named in renewals until this returns.
        lanes: looked at in this order; give them in turns.
        free: free slots by group.
        lease_s: how long the jobs are the runner's without a renewal.
        alone: how many of them may be such as run alone: 0 or 1. They come first.
    """
    rows = await database.fetch(
        _SQL["claim"],
        {
            "session_id": session_id,
            "claim_id": claim_id,
            "functions": [lane.function for lane in lanes],
            "interfaces": [lane.interface for lane in lanes],
            "groups": [lane.group + 1 for lane in lanes],
            "expected_s": [lane.expected_s for lane in lanes],
            "free": list(free),
            "lease_s": lease_s,
            "alone": alone,
        },
    )
    return msgspec.convert(rows, list[Claimed])


async def next_due(database: Database, functions: Sequence[str]) -> float | None:
    """Seconds until the first job that waits for its retry may start; None when there is none."""
    return (await database.fetch(_SQL["next_due"], {"functions": list(functions)}))[0]["seconds"]


async def renew(
    database: Database, *, session_id: str, held: Sequence[Held], claiming: Sequence[str], lease_s: float
) -> Renewal:
    """Renew the leases of everything that the runner holds.

    Args:
        database: an open one.
        session_id: the runner's.
        held: the complete list: what the ledger has beyond it is given back.
        claiming: ids of claims that haven't returned.
        lease_s: from now on.
    """
    rows = await database.fetch(
        _SQL["renew"],
        {
            "session_id": session_id,
            "ids": [one.job_id for one in held],
            "tokens": [one.token for one in held],
            "attempts": [one.attempt for one in held],
            "claiming": list(claiming),
            "lease_s": lease_s,
        },
    )
    found: dict[str, list[str]] = {"lost": [], "cancelled": [], "busy": [], "returned": []}
    for row in rows:
        found[row["verdict"]].append(row["job_id"])
    return Renewal(
        lost=found["lost"],
        cancelled=found["cancelled"],
        busy=found["busy"],
        given_back=len(found["returned"]),
    )


async def progress(database: Database, reports: Sequence[Report]) -> None:
    """Note how far jobs are; of one that isn't the runner's any more, nothing."""
    await database.fetch(
        _SQL["progress"],
        {
            "ids": [report.job_id for report in reports],
            "tokens": [report.token for report in reports],
            "attempts": [report.attempt for report in reports],
            "fractions": [min(1.0, max(0.0, report.fraction)) for report in reports],
            "messages": [_text(report.message) for report in reports],
        },
    )


async def finish(
    database: Database, *, session_id: str, outcomes: Sequence[Outcome], result_ttl_s: float
) -> dict[str, State]:
    """Record how starts ended.

    Args:
        database: an open one.
        session_id: the runner's.
        outcomes: at most one for each job.
        result_ttl_s: how long results are kept.

    Returns:
        The state that each job has now. One that is missing isn't the runner's any more: discard it.
    """
    now = time.monotonic()
    rows = await database.fetch(
        _SQL["finish"],
        {
            "session_id": session_id,
            "ids": [outcome.job_id for outcome in outcomes],
            "tokens": [outcome.token for outcome in outcomes],
            "attempts": [outcome.attempt for outcome in outcomes],
            "kinds": [outcome.kind for outcome in outcomes],
            "outputs": [outcome.output for outcome in outcomes],
            "categories": [_text(outcome.category) for outcome in outcomes],
            "messages": [_text(outcome.message) for outcome in outcomes],
            "errors": [_errors(outcome) for outcome in outcomes],
            "execution_s": [outcome.execution_s for outcome in outcomes],
            "waits_s": [max(0.0, outcome.not_before - now) for outcome in outcomes],
            "result_ttl_s": result_ttl_s,
        },
        within=within(sum(len(outcome.output or b"") for outcome in outcomes)),
    )
    return {row["job_id"]: row["state"] for row in rows}


def _errors(outcome: Outcome) -> str | None:
    if not outcome.errors:
        return None
    errors = [
        {"path": _text(path), "message": _text(message)} for path, message in outcome.errors[:_MOST_ERRORS]
    ]
    return msgspec.json.encode(errors).decode()


def _text(words: str) -> str:
    """Bounded, and without what Postgres' text can't hold."""
    if len(words) > _LONGEST_TEXT:
        words = words[: _LONGEST_TEXT - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return words.replace(_NOT_IN_TEXT, "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
