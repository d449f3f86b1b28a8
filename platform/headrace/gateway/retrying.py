"""`POST /jobs/{id}/retry`: a job that ended without a result, done again by a new one. Once for each job."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import Response, post
from litestar.params import FromPath

from headrace.database import Database
from headrace.domain import WEIGHTS
from headrace.gateway import job_list, job_view, preferences
from headrace.gateway.auth import Authenticator, require, require_call
from headrace.gateway.call_problems import no_runner
from headrace.gateway.directory import Directory
from headrace.gateway.problems import Problem
from headrace.gateway.quotas import Headers, Quotas, jobs_headers, merged, told
from headrace.gateway.refusals import refused
from headrace.gateway.requests import AnyRequest, headers_of, json_answer, request_id_of, root_of
from headrace.gateway.submitter import Submitter
from headrace.keys import KeyRow
from headrace.ledger import reading, retrying
from headrace.ledger.retrying import RETRYABLE, Original, bounds_of
from headrace.ledger.submission import NewJob
from headrace.settings import Settings

_REPLAYED: Final = {"Idempotent-Replayed": "true"}
_WHY_NOT: Final = {
    "queued": "The job still waits: it will be started.",
    "running": "The job still runs.",
    "cancel_requested": "The job's cancel is under way; once it is cancelled it can be retried.",
    "succeeded": "The job has succeeded.",
}


class Retries:
    """What the route does.

    Args:
        settings: the gateway's.
        authenticator: who asks.
        quotas: how often.
        directory: where runners were seen.
        submitter: the way into the ledger.
        database: the ledger's.
        actor: the gateway's, in whose name what is past its time is moved on.
    """

    def __init__(
        self,
        settings: Settings,
        authenticator: Authenticator,
        quotas: Quotas,
        directory: Directory,
        submitter: Submitter,
        database: Database,
        actor: str,
    ) -> None:
        self._settings = settings
        self._authenticator = authenticator
        self._quotas = quotas
        self._directory = directory
        self._submitter = submitter
        self._database = database
        self._actor = actor

    async def retry(self, request: AnyRequest, job_id: str) -> Response[bytes]:
        """Submit the new job, or answer the one that was submitted for this before."""
        headers = headers_of(request)
        key = await self._authenticator.owner(headers.get(b"authorization"))
        require(key, "call")
        old = None
        if job_list.is_job_id(job_id):
            old = await retrying.original(self._database, job_id, key.owner_id, self._actor)
        if old is None:
            raise Problem("unknown-job")
        require_call(key, old.function)
        root = root_of(request)
        if old.retried_as is not None:
            return await self._replayed(old.retried_as, key, root, ())
        if old.state not in RETRYABLE:
            raise Problem("not-retryable", _WHY_NOT[old.state])
        rate = self._quotas.take(key)
        with told(rate):
            self._require_runner(old)
            new = old.again(
                bounds_of(self._settings, key.most_outstanding),
                actor=f"key:{key.key_id}",
                key_id=key.key_id,
                request_id=request_id_of(request),
                traceparent=preferences.trace_of(headers),
            )
            # What the owner may ask for may have been lowered meanwhile.
            weight = min(new.weight, WEIGHTS[key.highest_priority])
            return await self._submit(msgspec.structs.replace(new, weight=weight), key, root, rate)

    def _require_runner(self, old: Original) -> None:
        self._directory.find(old.function)
        self._directory.gate.require(old.function)
        if not self._directory.was_served(old.function, old.interface, old.queue_s):
            detail = f"No runner of {old.function} that takes the input was seen within its queue budget."
            raise no_runner(detail, self._directory.away_s(old.function, old.interface))

    async def _submit(self, new: NewJob, key: KeyRow, root: str, rate: Headers) -> Response[bytes]:
        receipt = await self._submitter.submit(new)
        if receipt.outcome == "not-retryable":  # a final state is never left: it isn't there any more
            raise Problem("unknown-job")
        if receipt.outcome not in {"accepted", "replayed"}:
            raise refused(new, receipt)
        if receipt.job_id != new.job_id:
            return await self._replayed(receipt.job_id, key, root, rate)
        quota = (*rate, *jobs_headers(new.most_outstanding, receipt.outstanding + 1))
        return _answer(job_view.encode_accepted(new, receipt, root), new.job_id, root, merged({}, quota))

    async def _replayed(self, job_id: str, key: KeyRow, root: str, rate: Headers) -> Response[bytes]:
        job = await reading.find(self._database, job_id, key.owner_id, actor=self._actor)
        if job is None:
            raise Problem("unknown-job", f"The job was retried as {job_id}, which isn't kept any longer.")
        return _answer(job_view.encode_job(job, root), job_id, root, merged(_REPLAYED, rate))


def retry_handlers(retries: Retries) -> list[Any]:
    """The route."""

    @post("/jobs/{job_id:str}/retry")
    async def retry_job(request: AnyRequest, job_id: FromPath[str]) -> Response[bytes]:
        return await retries.retry(request, job_id)

    return [retry_job]


def _answer(body: bytes, job_id: str, root: str, more: dict[str, str]) -> Response[bytes]:
    headers = {
        "Location": job_view.job_url(root, job_id),
        "Headrace-Job-Id": job_id,
        "Retry-After": str(job_view.retry_after()),
        "Cache-Control": "no-store",
        **more,
    }
    return json_answer(body, 202, headers)
