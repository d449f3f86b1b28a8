"""What a call can end with instead of a result.

ClientError
├── Unreachable   no answer: wrong address, gateway down, connection lost
├── Restarted     the function began anew: the items that a stream has given are void
└── CallRefused   an answer that isn't the result; carries the problem document
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.errors import HeadraceError

STATUSES: Final[Mapping[str, int]] = {
    "job-cancelled": 409,
    "invalid-input": 422,
    "worker-lost": 502,
    "deadline-exceeded": 504,
    "deadline-unreachable": 504,
    "hard-limit-exceeded": 504,
    "queue-deadline-exceeded": 504,
    "soft-limit-exceeded": 504,
}
"""With what a call is answered that ended so, as far as that isn't 500: jobs end so too, without a status."""


class ClientError(HeadraceError):
    """Base of the client's errors."""

    job_id: str = ""
    """The job that the call has or may have become, where the site has named one: as it may go on, another
    call could be the same work again. `Client.job` tells how it stands."""


class Unreachable(ClientError):
    """The gateway gave no answer."""


class Restarted(ClientError):
    """The start whose items a stream has given was lost, and the function begins anew: they are void.

    The job goes on: the same call with the same key gives all items of its newest start.

    Args:
        void: how many items the stream has given.
        job_id: the job that the call is.
    """

    def __init__(self, void: int, job_id: str) -> None:
        super().__init__(
            f"The function was started again: the {void} items so far are void. The call goes on as the job "
            f"{job_id}; made again with its idempotency key, it gives the items from the first one on."
        )
        self.void = void
        self.job_id = job_id


class CallRefused(ClientError):
    """The gateway answered with a problem (RFC 9457).

    Args:
        status: the HTTP status.
        problem: the document; empty when the answer wasn't one, as from a proxy.
        retry_after: when to come back, in seconds, if the answer said so.

    Its `place` is a place in line, where the answer has given one: a call that is made with it after
    `retry_after` seconds, and at most 5 s later, comes before others. Else it is empty.
    """

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after: int | None = None) -> None:
        self.status = status
        self.problem = problem
        self.retry_after = retry_after
        title, detail = str(problem.get("title") or f"HTTP {status}"), str(problem.get("detail") or "")
        says_all = detail.startswith(title)  # as in "The function failed."
        super().__init__(detail if says_all else f"{title}: {detail}" if detail else title)
        self.job_id = str(problem.get("job_id") or "")
        self.place = str(problem.get("place") or "")

    @property
    def code(self) -> str:
        """The problem's stable code, such as `invalid-input`; empty when there is none."""
        return str(self.problem.get("code", ""))


def of_job(error: ClientError, job_id: str) -> ClientError:
    """The same error, which names the job: asking for that failed, and not the call."""
    said = f"The call was accepted as the job {job_id}."
    if isinstance(error, CallRefused):
        detail = f"{error.problem.get('detail') or ''} {said}".lstrip()
        document = {**error.problem, "detail": detail, "job_id": job_id}
        return CallRefused(error.status, document, error.retry_after)
    named = type(error)(f"{error}. {said}")
    named.job_id = job_id
    return named
