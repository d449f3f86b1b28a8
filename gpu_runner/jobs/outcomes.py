"""What the end of an execution says to the ledger."""

from __future__ import annotations

import time
from typing import Literal

from headrace.ledger.execution import Claimed, Kind, Outcome
from headrace.link.frames import Answer, Error, Fenced, Handed, Lost, Refused, Result

EndedBy = Literal["", "cancel", "lease", "leaving"]
"""Why a running job was told to end: its cancel, this runner's lost lease, this runner's own end."""


def outcome_of(claimed: Claimed, answer: Answer, ended_by: EndedBy) -> Outcome:
    """The outcome for an answer that a gateway would have got.

    Args:
        claimed: the job, and which start of it.
        answer: how the start ended.
        ended_by: what it was told to end for.
    """
    match answer:
        case Result():
            return _outcome(claimed, "succeeded", answer.exec_ms, output=answer.output)
        case Error():
            return _failed(claimed, answer, ended_by)
        case Lost():
            return _lost(claimed, answer, ended_by)
        case Refused(reason="full"):  # what it needs elsewhere is busy
            return given_back(claimed, not_before=time.monotonic() + answer.retry_after_s)
        case Refused() | Handed() | Fenced():  # the last two are for gateways only
            return given_back(claimed)


def _failed(claimed: Claimed, error: Error, ended_by: EndedBy) -> Outcome:
    if _is_ours(error.category, ended_by):
        return given_back(claimed, error.exec_ms)
    return _outcome(
        claimed,
        "retry" if error.retryable else "failed",
        error.exec_ms,
        # As for a direct call: callers learn that it failed each time, not how it failed the last time.
        category="attempts-exhausted" if error.retryable else error.category,
        message=error.message,
        errors=error.errors,
        not_before=time.monotonic() + error.retry_after_s if error.retry_after_s > 0 else 0.0,
    )


def _is_ours(category: str, ended_by: EndedBy) -> bool:
    """Whether an ending was this runner's doing: one that nobody asked the ledger for."""
    if category == "cancelled":
        return ended_by != "cancel"
    return category == "hard-limit-exceeded" and ended_by in ("lease", "leaving")


def _lost(claimed: Claimed, lost: Lost, ended_by: EndedBy) -> Outcome:
    if ended_by == "cancel":
        return _outcome(claimed, "failed", category="cancelled", message="The call was stopped.")
    if lost.charged:
        message = "The process that ran the function was lost."
        return _outcome(claimed, "lost", category="worker-lost", message=message)
    if ended_by or not lost.suspect:
        return given_back(claimed)
    message = "The process that ran the function was killed for another call."
    return _outcome(claimed, "displaced", category="worker-lost", message=message)


def given_back(claimed: Claimed, execution_ms: float = 0.0, *, not_before: float = 0.0) -> Outcome:
    """The start came to nothing through no fault of the call."""
    return _outcome(
        claimed,
        "returned",
        execution_ms,
        category="worker-lost",
        message="The job's runner gave it back each time.",
        not_before=not_before,
    )


def _outcome(
    claimed: Claimed,
    kind: Kind,
    execution_ms: float = 0.0,
    *,
    output: bytes | None = None,
    category: str = "",
    message: str = "",
    errors: tuple[tuple[str, str], ...] = (),
    not_before: float = 0.0,
) -> Outcome:
    return Outcome(
        job_id=claimed.job_id,
        token=claimed.token,
        attempt=claimed.attempt,
        kind=kind,
        output=output,
        category=category,
        message=message,
        errors=errors,
        execution_s=execution_ms / 1000,
        not_before=not_before,
    )
