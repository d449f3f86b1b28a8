"""The output of a call that became a job, asked for until the job has ended."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

from headrace.client.errors import STATUSES, CallRefused, ClientError, of_job
from headrace.client.events import PASSING, PATIENCE_S
from headrace.domain import FINAL

_WAIT_S: Final = 50  # for a job, in one request; the gateway may answer sooner
_SHORTEST_HOLD_S: Final = 1.0
_PAUSE_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0

_T = TypeVar("_T")


class _Site(Protocol):
    """What is asked: the client."""

    def job(self, job_id: str, *, wait: int | None = None) -> dict[str, Any]: ...

    def result(self, job_id: str) -> Any: ...


def output_of(site: _Site, job: dict[str, Any]) -> Any:
    """The output of a job, once it has ended; an outage of the site of up to a minute is waited for.

    Args:
        site: where the job is.
        job: as it stood.

    Raises:
        CallRefused: the job ended without a result, or the site doesn't tell of it.
        Unreachable: the site doesn't come back.
    """
    job_id = str(job.get("job_id"))
    while job.get("status") not in FINAL:
        asked_at = time.monotonic()
        job = _patiently(job_id, lambda: site.job(job_id, wait=_WAIT_S))
        if job.get("status") not in FINAL and time.monotonic() < asked_at + _SHORTEST_HOLD_S:
            time.sleep(_PAUSE_S)  # the answer came at once, which could go on without end
    if "result" in job:
        return job["result"]
    if job["status"] == "succeeded":
        return _patiently(job_id, lambda: site.result(job_id))
    raise _failed(job)


def _patiently(job_id: str, ask: Callable[[], _T]) -> _T:
    """What the site says, as soon as it does; where patience has an end its error, with the job's id."""
    ends_at, pause = None, _FIRST_PAUSE_S
    while True:
        try:
            return ask()
        except ClientError as error:
            now = time.monotonic()
            # From the first error on: to notice that a connection is dead may have taken long.
            ends_at = now + PATIENCE_S if ends_at is None else ends_at
            wait = pause * random.uniform(0.5, 1)  # noqa: S311 - not all callers at once
            passing = True
            if isinstance(error, CallRefused):
                wait = max(wait, error.retry_after or 0)
                passing = error.status in PASSING
            if not passing or now + wait > ends_at:
                raise of_job(error, job_id) from None
        time.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _failed(job: Mapping[str, Any]) -> CallRefused:
    """The error of a job that ended without a result, as that of a call that was answered so."""
    error: dict[str, Any] = job.get("error") or {}
    code = str(error.get("category", "job-cancelled"))
    status = job["status"]
    document = {
        "title": f"The job was {status}" if status == "cancelled" else f"The job {status}",
        "detail": error.get("message", ""),
        "code": code,
        "job_id": job.get("job_id"),
        "errors": error.get("errors", []),
    }
    return CallRefused(STATUSES.get(code, 500), document)
