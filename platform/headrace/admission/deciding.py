"""The rule: an answer on this connection, a job, or a refusal."""

from __future__ import annotations

from typing import Literal, NamedTuple

from headrace.admission.prediction import Predicted
from headrace.admission.returning import LATEST_S
from headrace.admission.spans import Span

Reason = Literal["asked", "key", "wait=0", "over-hold", "no-room"]
Refusal = Literal["no-runner", "function-degraded", "busy", "hold-exceeded"]


class Wish(NamedTuple):
    """What the caller asks for that matters here.

    Args:
        respond_async: it would rather have a job.
        has_key: it may be made again, so it has to be recorded.
        takes_job: it can do with a job where it asked for none; not with `Headrace-Async: never`.
    """

    respond_async: bool = False
    has_key: bool = False
    takes_job: bool = True


class Snapshot(NamedTuple):
    """How the function stands.

    Args:
        predicted: what a call should take that came now; None where no linked runner can run it.
        brief_wait: the longest wait for a slot on the direct path, in seconds.
        degraded: runners serve it, and none of them can run it.
        records: Postgres answers, so that a job can be recorded.
        back_s: until a runner that can run it should be there, in seconds, where none is.
        clear_s: until none of its jobs waits, in seconds; 0: none does, or nobody knows.
        jobs: how many of them wait.
    """

    predicted: Predicted | None
    brief_wait: float
    degraded: bool = False
    records: bool = True
    back_s: float = LATEST_S
    clear_s: float = 0.0
    jobs: int = 0


class Sync(NamedTuple):
    """It goes to a runner at once; its connection is held so many seconds."""

    hold: float


class Job(NamedTuple):
    """It is recorded first; its connection is held so many seconds for the end, and why."""

    hold: float
    reason: Reason

    @property
    def at_once(self) -> bool:
        """Whether it is answered with the job as soon as that is recorded."""
        return self.hold <= 0


class Refused(NamedTuple):
    """It isn't taken, by the code of the problem, and may be tried again after so many seconds.

    None: the same call would never be taken.
    """

    code: Refusal
    retry_after_s: float | None


Decision = Sync | Job | Refused


def decide(span: Span, wish: Wish, snapshot: Snapshot) -> Decision:
    """What becomes of a call.

    Args:
        span: how long it may take; for a stream, whose connection isn't silent, the hold is the total.
        wish: what its caller asks for.
        snapshot: how the function stands.
    """
    if wish.respond_async and wish.takes_job:
        return Job(span.hold, "asked")
    if wish.has_key:
        return Job(span.hold, "key")
    predicted = snapshot.predicted
    if predicted is None:
        return Refused("function-degraded" if snapshot.degraded else "no-runner", snapshot.back_s)
    # Where no job can be had for want of room, a runner may have some after all.
    is_soon = may_start_soon(predicted, snapshot.brief_wait) or not snapshot.records
    if wish.takes_job:
        return _to_any(span, predicted, is_soon=is_soon)
    return _to_runner(span, predicted, snapshot.clear_s, is_soon=is_soon)


def _to_any(span: Span, predicted: Predicted, *, is_soon: bool) -> Decision:
    """Of a call that may become a job."""
    hold = span.hold
    if hold <= 0:
        return Job(0.0, "wait=0")
    # Where the deadline comes with the end of the hold, a job would have no longer.
    if predicted.total_s > hold and hold < span.total:
        return Job(0.0, "over-hold")
    return Sync(hold) if is_soon else Job(hold, "no-room")


def _to_runner(span: Span, predicted: Predicted, clear_s: float, *, is_soon: bool) -> Decision:
    """Of one that mustn't: it is sent wherever it may find room.

    Who is refused comes back when there should be some: while jobs wait, each slot that gets free is filled
    at once, and one that isn't free within the brief wait isn't waited for.
    """
    hold = span.hold
    if hold <= 0:
        return Refused("hold-exceeded", None)
    if is_soon or predicted.wait_s <= hold:
        return Sync(hold)
    return Refused("busy", max(predicted.wait_s, clear_s))


def may_start_soon(predicted: Predicted, brief_wait: float) -> bool:
    """Whether a runner would take the call, as far as is known: it would wait there only briefly."""
    is_soon = predicted.has_room or predicted.wait_s <= brief_wait
    return is_soon or predicted.is_cold or not predicted.knows_wait


def ends_within(hold: float, wait_s: float | None, predicted: Predicted | None) -> bool:
    """Whether a job that has just been accepted may end while its connection is held; else it is 202 at once.

    Args:
        hold: what is left of it, in seconds.
        wait_s: until its start, as the ledger predicts; None: not known, and nobody is sent away on a guess.
        predicted: what its execution should take, by the runners' reports; None: nothing is known.
    """
    if wait_s is None:
        return True
    if predicted is None:
        return wait_s <= hold
    return wait_s + predicted.load_s + (predicted.known_p95_s or 0.0) <= hold
