"""`/jobs`: the ledger, for the owner of each job.

A job of another owner, one that isn't there, and what can't be a job's id get the same answer.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath
from litestar.types import ASGIApp

from headrace.database import Database
from headrace.domain import FINAL
from headrace.gateway import job_list, job_view, preferences
from headrace.gateway.auth import Authenticator, require
from headrace.gateway.directory import Directory
from headrace.gateway.exchange import server_timing
from headrace.gateway.job_events import EventStream, last_event_id
from headrace.gateway.job_result import PIECE, ResultStream
from headrace.gateway.problems import Problem
from headrace.gateway.requests import AnyRequest, headers_of, is_head, json_answer, root_of
from headrace.gateway.waking import Watcher
from headrace.keys import KeyRow, Scope
from headrace.ledger import cancelling, reading
from headrace.ledger.reading import Job


class Jobs:
    """What the routes do.

    Args:
        authenticator: who asks.
        directory: which functions there are.
        database: the ledger's.
        lists: the same, over connections that only lists use.
        watcher: tells who waits.
        max_hold: the longest hold of a connection, in seconds.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        directory: Directory,
        database: Database,
        lists: Database,
        watcher: Watcher,
        max_hold: float,
    ) -> None:
        self._authenticator = authenticator
        self._directory = directory
        self._database = database
        self._lists = lists
        self._watcher = watcher
        self._max_hold = max_hold

    async def list(self, request: AnyRequest) -> Response[bytes]:
        """One page of the caller's jobs."""
        key = await self._authenticate(request, "read")
        functions = self._directory.functions.keys() | self._directory.retired.keys()
        wanted = job_list.read_query(request.query_params.multi_items(), functions)
        found = await reading.list_jobs(
            self._lists,
            key.owner_id,
            before=wanted.before,
            limit=wanted.limit + 1,
            state=wanted.status,
            function=wanted.function,
            batch_id=wanted.batch,
            category=wanted.category,
            dead=wanted.dead,
        )
        root = root_of(request)
        page = found[: wanted.limit]
        cursor = page[-1].job_id if len(found) > len(page) else None
        headers = {"Cache-Control": "no-store"}
        if cursor is not None:
            headers["Link"] = f'<{root}/jobs?{wanted.query(cursor)}>; rel="next"'
        items = [job_view.view(job, root) for job in page]
        return json_answer(msgspec.json.encode({"items": items, "next": cursor}), 200, headers)

    async def show(self, request: AnyRequest, job_id: str) -> Response[bytes]:
        """One job, as soon as it is final where the caller prefers to wait."""
        key = await self._authenticate(request, "read")
        wait = preferences.prefer(headers_of(request).get(b"prefer")).wait
        job = await self._find(job_id, key)
        headers = _headers(job)
        if wait is not None:
            headers["Preference-Applied"] = f"wait={wait}"
            if wait > 0 and job.state not in FINAL:
                job = await self._awaited(job, min(wait, self._max_hold), request)
        if job.state not in FINAL:
            headers["Retry-After"] = str(job_view.retry_after())
        return json_answer(job_view.encode_job(job, root_of(request)), 200, headers)

    async def result(self, request: AnyRequest, job_id: str) -> ResultStream:
        """The output itself."""
        job = await self._find(job_id, await self._authenticate(request, "read"))
        if job.state not in FINAL:
            raise Problem("not-finished", headers={"Retry-After": str(job_view.retry_after())})
        if (fault := job_view.fault_of(job)) is not None:
            how = "was cancelled" if job.state == "cancelled" else job.state
            raise Problem("no-result", f"The job has no result: it {how}.", error=fault)
        name, value = server_timing(job.waited_s * 1000, job.execution_s * 1000)
        headers = {**_headers(job), name.decode(): value.decode()}
        first = await reading.result_piece(self._database, job.job_id, 0, PIECE)
        if first is None:
            raise job_view.expired_result(job)
        return ResultStream(self._database, job, first, headers, is_head=is_head(request))

    async def cancel(self, request: AnyRequest, job_id: str) -> Response[bytes]:
        """End a job, or ask its runner to."""
        key = await self._authenticate(request, "call")
        job = None
        if job_list.is_job_id(job_id):
            job = await cancelling.cancel(self._database, job_id, key.owner_id, f"key:{key.key_id}")
        if job is None:
            raise Problem("unknown-job")
        headers = _headers(job)
        match job.state:
            case "cancelled":
                status = 200
            case "cancel_requested":
                status = 202
                headers["Location"] = job_view.job_url(root_of(request), job.job_id)
                headers["Retry-After"] = str(job_view.retry_after())
            case _:
                raise Problem("already-finished", _ENDED[job.state])
        return json_answer(job_view.encode_job(job, root_of(request)), status, headers)

    async def events(self, request: AnyRequest, job_id: str) -> EventStream:
        """The stream of its events; 204 for a reader that has the last one."""
        key = await self._authenticate(request, "read")
        after = last_event_id(request.headers.get("last-event-id"), request.query_params.get("last_event_id"))
        job = await self._find(job_id, key)
        return EventStream(
            self._database,
            self._watcher,
            job,
            root_of(request),
            after=after,
            is_head=is_head(request),
        )

    async def _authenticate(self, request: AnyRequest, scope: Scope) -> KeyRow:
        headers = headers_of(request)
        key = await self._authenticator.owner(headers.get(b"authorization"))
        require(key, scope)
        return key

    async def _find(self, job_id: str, key: KeyRow) -> Job:
        job = None
        if job_list.is_job_id(job_id):
            job = await reading.find(self._database, job_id, key.owner_id, actor=self._watcher.actor)
        if job is None:
            raise Problem("unknown-job")
        return job

    async def _awaited(self, job: Job, seconds: float, request: AnyRequest) -> Job:
        with self._watcher.watch(job.job_id) as watch:
            await self._watcher.begin(watch, follow=False)
            watch.stir()  # it is to be read again now that its end will be told
            job = await self._watcher.until_final(watch, job, seconds, request.receive) or job
            if watch.is_gone:
                raise Problem("unknown-job")
            return job


_ENDED: Final = {
    "succeeded": "The job has already succeeded.",
    "failed": "The job has already failed.",
    "expired": "The job has already expired.",
}


def job_handlers(jobs: Jobs) -> list[Any]:
    """The routes."""

    @get("/jobs")
    async def list_jobs(request: AnyRequest) -> Response[bytes]:
        return await jobs.list(request)

    @get("/jobs/{job_id:str}")
    async def show_job(request: AnyRequest, job_id: FromPath[str]) -> Response[bytes]:
        return await jobs.show(request, job_id)

    @get("/jobs/{job_id:str}/result")
    async def show_result(request: AnyRequest, job_id: FromPath[str]) -> ASGIApp:
        return await jobs.result(request, job_id)

    @get("/jobs/{job_id:str}/events")
    async def show_events(request: AnyRequest, job_id: FromPath[str]) -> ASGIApp:
        return await jobs.events(request, job_id)

    @post("/jobs/{job_id:str}/cancel")
    async def cancel_job(request: AnyRequest, job_id: FromPath[str]) -> Response[bytes]:
        return await jobs.cancel(request, job_id)

    return [list_jobs, show_job, show_result, show_events, cancel_job]


def _headers(job: Job) -> dict[str, str]:
    return {"Cache-Control": "no-store", "Headrace-Job-Id": job.job_id}
