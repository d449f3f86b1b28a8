"""A job of the ledger as its owner sees it: the JSON object, its error, its addresses."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Final

import msgspec

from headrace.domain import State
from headrace.gateway.problem_kinds import KINDS
from headrace.gateway.problems import Problem
from headrace.ledger.batches import BatchResult
from headrace.ledger.reading import Job
from headrace.ledger.submission import NewJob, Receipt

_encode = msgspec.json.Encoder().encode
_SOONEST_S: Final = 2.0
_LATEST_S: Final = 5.0


class Progress(msgspec.Struct, frozen=True):
    """How far the function says that it is."""

    fraction: float
    message: str


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a job has no result; the category is a code of a problem."""

    category: str
    message: str
    errors: list[dict[str, str]] = []


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON object."""

    job_id: str
    status: State
    status_url: str
    function: str
    created_at: str | None
    queue_deadline: str | None
    deadline: str | None
    started_at: str | None = None
    finished_at: str | None = None
    attempt: int = 0
    progress: Progress | None = None
    error: Fault | None = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result_url: str | msgspec.UnsetType = msgspec.UNSET
    batch_id: str | msgspec.UnsetType = msgspec.UNSET
    batch_index: int | msgspec.UnsetType = msgspec.UNSET
    result_expires_at: str | msgspec.UnsetType | None = msgspec.UNSET
    retry_of: str | msgspec.UnsetType = msgspec.UNSET
    retried_as: str | msgspec.UnsetType = msgspec.UNSET


def job_url(root: str, job_id: str) -> str:
    """Where a job is, as an absolute path."""
    return f"{root}/jobs/{job_id}"


def encode_job(job: Job, root: str) -> bytes:
    """A job in JSON.

    Args:
        job: as it was read; a result that wasn't read with it is told by its address.
        root: what precedes the platform's paths.
    """
    return _encode(view(job, root))


def view(job: Job, root: str) -> JobView:
    """The same, not yet encoded."""
    url = job_url(root, job.job_id)
    result = inline_result(job)
    is_elsewhere = job.state == "succeeded" and result is None
    return JobView(
        job_id=job.job_id,
        status=job.state,
        status_url=url,
        function=job.function,
        created_at=timestamp(job.created_at),
        queue_deadline=timestamp(job.queue_deadline_at),
        deadline=timestamp(job.deadline_at),
        started_at=timestamp(job.started_at),
        finished_at=timestamp(job.finished_at),
        attempt=job.attempt,
        progress=progress_of(job),
        error=fault_of(job),
        result=msgspec.UNSET if result is None else msgspec.Raw(result),
        result_url=f"{url}/result" if is_elsewhere else msgspec.UNSET,
        batch_id=job.batch_id or msgspec.UNSET,
        batch_index=msgspec.UNSET if job.batch_index is None else job.batch_index,
        result_expires_at=timestamp(job.result_expires_at) if job.state == "succeeded" else msgspec.UNSET,
        retry_of=job.retry_of or msgspec.UNSET,
        retried_as=job.retried_as or msgspec.UNSET,
    )


def encode_accepted(job: NewJob, receipt: Receipt, root: str) -> bytes:
    """A job that was submitted just now, in JSON; no need to read it back."""
    assert receipt.state is not None
    return _encode(
        JobView(
            job_id=job.job_id,
            status=receipt.state,
            status_url=job_url(root, job.job_id),
            function=job.function,
            created_at=timestamp(receipt.created_at),
            queue_deadline=timestamp(receipt.queue_deadline_at),
            deadline=timestamp(receipt.deadline_at),
            attempt=job.attempt,
            retry_of=job.retry_of or msgspec.UNSET,
        )
    )


def encode_handed(job_id: str, function: str, attempt: int, root: str) -> bytes:
    """A job that a runner has recorded under this start and that can't be read now, in JSON."""
    return _encode(
        JobView(
            job_id=job_id,
            status="running",
            status_url=job_url(root, job_id),
            function=function,
            created_at=None,
            queue_deadline=None,
            deadline=None,
            attempt=attempt,
        )
    )


def inline_result(job: Job) -> bytes | None:
    """The output where it is part of the job: small, and not expired."""
    return None if job.result_expired else job.small_result


def progress_of(job: Job) -> Progress | None:
    """What the function last said, if anything."""
    return None if job.progress is None else Progress(job.progress, job.progress_message)


def fault_of(job: Job | BatchResult) -> Fault | None:
    """Why the job has no result and will get none; None while it may, and when it has."""
    if job.error_category is None:
        return None
    code = job.error_category if job.error_category in KINDS else "function-failed"
    errors = [{"path": one["path"], "message": one["message"]} for one in job.error_errors]
    return Fault(code, job.error_message or KINDS[code].meaning, errors)


def problem_of(job: Job) -> Problem:
    """The problem that answers a call whose job ended without a result."""
    fault = fault_of(job)
    assert fault is not None
    extra: dict[str, object] = {"job_id": job.job_id}
    if job.attempt:
        extra["attempt"] = job.attempt
    if fault.errors:
        extra["errors"] = fault.errors
    return Problem(fault.category, fault.message, headers={"Headrace-Job-Id": job.job_id}, **extra)


def expired_result(job: Job) -> Problem:
    """The problem of asking for a result that was kept long enough."""
    when = timestamp(job.result_expires_at)
    return Problem(
        "result-expired",
        f"The result was kept until {when}.",
        headers={"Headrace-Job-Id": job.job_id},
        job_id=job.job_id,
        expired_at=when,
    )


def retry_after() -> int:
    """Seconds after which asking for a job again is worthwhile; spread, so that askers don't come as one."""
    return round(random.uniform(_SOONEST_S, _LATEST_S))  # noqa: S311 - spreads load, guards nothing


def timestamp(instant: datetime | None) -> str | None:
    """RFC 3339 in UTC, to the millisecond."""
    if instant is None:
        return None
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
