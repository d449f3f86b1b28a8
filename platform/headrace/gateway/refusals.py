"""Why a call, a job or a batch isn't taken, in words for the caller, and when it may be."""

from __future__ import annotations

import random
from typing import Final

from headrace.admission import deciding, retry_after
from headrace.gateway import call_problems, job_view
from headrace.gateway.asked import Asked
from headrace.gateway.job_asked import JobCall
from headrace.gateway.problems import Problem
from headrace.gateway.quotas import no_room_for_batch, too_many_jobs
from headrace.ledger.batches import BatchReceipt, NewBatch, Room
from headrace.ledger.retrying import Bounds
from headrace.ledger.submission import NewJob, Receipt

_LONGEST_SPREAD_S: Final = 1.0
_SPREAD: Final = 0.05
"""How much later than there may be room somebody is told to come back, so that not all come as one. Those who
have places are spread by the ledger."""


def not_taken(decision: deciding.Refused, asked: Asked) -> Problem:
    """Why a call isn't taken: no runner could run it, or it takes no job and there is no room."""
    if decision.code == "no-runner":
        return call_problems.no_room(asked, decision.retry_after_s or 0.0)
    if decision.retry_after_s is None:
        return call_problems.out_of_time(asked)
    if decision.code == "function-degraded":
        return call_problems.degraded(asked, decision.retry_after_s)
    return Problem(decision.code, headers={"Retry-After": str(retry_after(decision.retry_after_s))})


def refused(job: NewJob, receipt: Receipt) -> Problem:
    """Why a job wasn't accepted."""
    match receipt.outcome:
        case "key-conflict":
            return conflict(receipt.job_id)
        case "quota-exceeded":
            return too_many_jobs(job.most_outstanding, job_view.retry_after())
        case outcome:
            return _backlog(outcome, job.function, due_s=receipt.due_s, place=receipt.place)


def conflict(job_id: str) -> Problem:
    """The problem of a call whose idempotency key stands for this job, which has another input."""
    return Problem(
        "key-conflict",
        f"The key was used with another input, by the call that is job {job_id}.",
        headers={"Headrace-Job-Id": job_id},
        job_id=job_id,
    )


def batch_refused(batch: NewBatch, receipt: BatchReceipt) -> Problem:
    """Why a batch wasn't accepted."""
    size = len(batch.costs)
    match receipt.refusal:
        case "key-conflict":
            return Problem(
                "key-conflict",
                f"The key was used with other inputs, by batch {receipt.batch_id}.",
                headers={"Headrace-Batch-Id": receipt.batch_id},
                batch_id=receipt.batch_id,
            )
        case "quota-exceeded":
            return no_room_for_batch(
                batch.most_outstanding, receipt.outstanding, size, job_view.retry_after()
            )
        case refusal:
            return _backlog(refusal, batch.function, size, due_s=receipt.due_s)


def no_room(function: str, bounds: Bounds, room: Room) -> Problem | None:
    """Why not even a batch of one input is accepted now; None where it may be."""
    if room.outstanding >= bounds.most_outstanding:
        return too_many_jobs(bounds.most_outstanding, job_view.retry_after())
    return None if room.refusal is None else _backlog(room.refusal, function, due_s=room.due_s)


def never_fits(batch: NewBatch, room: Room) -> Problem | None:
    """Why a batch wouldn't be accepted if nothing else was there; None where it may be."""
    size = len(batch.costs)
    if size > batch.most_outstanding:
        message = f"the key's owner may have {batch.most_outstanding} unfinished jobs"
    elif size > room.most_waiting:
        message = f"{room.most_waiting} jobs of {batch.function} may wait"
    elif room.most_cost is not None and (cost := sum(batch.costs)) > room.most_cost:
        message = f"jobs that wait for {batch.function} may cost {room.most_cost:g} together, not {cost:g}"
    else:
        return None
    message = f"a batch of {size} never fits: {message}"
    return Problem("invalid-input", message, errors=[{"path": "", "message": message}])


def still_runs(call: JobCall) -> Problem:
    """For a client that takes no job for an answer, at the end of its hold."""
    return Problem(
        "hold-exceeded",
        f"The job {call.job_id}, which stands for the call, was not finished within the {call.hold:g} s for "
        "which its connection may be held. It goes on.",
        headers={"Headrace-Job-Id": call.job_id},
        job_id=call.job_id,
    )


def come_back_after(due_s: float) -> int:
    """`Retry-After` for whoever has no place, in whole seconds: never before `due_s`, and 600 at most."""
    spread_s = min(_LONGEST_SPREAD_S, due_s * _SPREAD)
    return retry_after(due_s + random.uniform(0, spread_s))  # noqa: S311 - spreads load, guards nothing


def _backlog(
    outcome: str | None,
    function: str,
    size: int | None = None,
    *,
    due_s: float | None = None,
    place: str | None = None,
) -> Problem:
    """Why a lane takes no job, or not all of a batch of this size, and when it should.

    Args:
        outcome: the ledger's.
        function: whose lane it is.
        size: the batch's; None: it is about one job.
        due_s: seconds until there should be room; None: nobody knows.
        place: what admits the caller then, before others.
    """
    match outcome:
        case "backlog-full" if size is None:
            detail = f"As many jobs of {function} wait, or have a place in line, as may wait."
        case "backlog-full":
            detail = f"{size} more would be more jobs of {function} than may wait."
        case "backlog-costly" if size is None:
            detail = f"The jobs of {function} that wait, or have a place in line, cost as much as may wait."
        case "backlog-costly":
            detail = f"{size} more would cost more, with the jobs of {function} that wait, than may wait."
        case "backlog-old":
            detail = f"Jobs of {function} have waited so long that no others are taken."
        case "no-capacity" if size is None:
            detail = f"What waits for {function} would keep the job waiting beyond its time."
        case "no-capacity":
            detail = f"What waits for {function} would keep {size} more waiting beyond their time."
        case _:
            raise AssertionError(f"a call can't be answered {outcome}")
    code = "no-capacity" if outcome == "no-capacity" else "backlog-full"
    if place is None or due_s is None:
        seconds = job_view.retry_after() if due_s is None else come_back_after(due_s)
        return Problem(code, detail, headers={"Retry-After": str(seconds)})
    seconds = retry_after(due_s)
    detail += f" A place in line is kept for you: come back in {seconds} s with it."
    return Problem(code, detail, headers={"Retry-After": str(seconds), "Headrace-Place": place}, place=place)
