"""`/fn/{name}/batch` and `/batches`: submitting, following and cancelling batches, for their owner.

A batch of another owner, one that isn't there, and what can't be a batch's id get the same answer.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath
from litestar.types import ASGIApp

from headrace.database import Database
from headrace.gateway import batch_view, job_view, preferences
from headrace.gateway.auth import Authenticator, require
from headrace.gateway.batch_call import BatchCalls
from headrace.gateway.batch_results import PAGE, ResultLines
from headrace.gateway.batch_upload import MOST_ITEMS
from headrace.gateway.exchange import ClientLeft
from headrace.gateway.job_list import DEFAULT, MOST, is_job_id
from headrace.gateway.problems import Problem
from headrace.gateway.requests import AnyRequest, headers_of, is_head, json_answer, root_of
from headrace.gateway.waking import Watcher, departure
from headrace.keys import KeyRow, Scope
from headrace.ledger import batches
from headrace.ledger.batches import Batch

_LOOK_S: Final = 0.5
_CLIENT_LEFT: Final = 499  # nobody gets it
_NUMBER: Final = re.compile("[0-9]{1,9}")


class Batches:
    """What the routes do.

    Args:
        calls: takes what is submitted.
        authenticator: who asks.
        database: the ledger's.
        lists: the same, over connections that only lists use.
        watcher: knows when the gateway ends, and its name.
        max_hold: the longest hold of a connection, in seconds.
    """

    def __init__(
        self,
        calls: BatchCalls,
        authenticator: Authenticator,
        database: Database,
        lists: Database,
        watcher: Watcher,
        max_hold: float,
    ) -> None:
        self._calls = calls
        self._authenticator = authenticator
        self._database = database
        self._lists = lists
        self._watcher = watcher
        self._max_hold = max_hold

    async def submit(self, request: AnyRequest, name: str) -> Response[bytes]:
        """Accept a batch."""
        try:
            accepted = await self._calls.accept(request, name)
        except ClientLeft:
            return Response(b"", status_code=_CLIENT_LEFT)
        batch, root = accepted.batch, root_of(request)
        headers = {
            **_headers(batch),
            "Location": batch_view.batch_url(root, batch.batch_id),
            "Retry-After": str(job_view.retry_after()),
            **accepted.headers,
        }
        counts = {"queued": batch.size} if accepted.is_new else None
        return await self._answer(batch, 202, headers, root, counts)

    async def list(self, request: AnyRequest) -> Response[bytes]:
        """One page of the caller's batches."""
        key = await self._authenticate(request, "read")
        given = _query(request, "limit", "cursor")
        limit, cursor = _number(given, "limit", 1, MOST, DEFAULT), given.get("cursor")
        if cursor is not None and not is_job_id(cursor):
            raise Problem("bad-request", "`cursor` must be what `next` was in the page before.")
        found = await batches.list_batches(self._lists, key.owner_id, cursor, limit + 1)
        root, page = root_of(request), found[:limit]
        after = page[-1].batch_id if len(found) > limit else None
        headers = {"Cache-Control": "no-store"}
        if after is not None:
            headers["Link"] = f'<{root}/batches?limit={limit}&cursor={after}>; rel="next"'
        items = [batch_view.view(batch, None, root) for batch in page]
        return json_answer(msgspec.json.encode({"items": items, "next": after}), 200, headers)

    async def show(self, request: AnyRequest, batch_id: str) -> Response[bytes]:
        """One batch, as soon as all its jobs are final where the caller prefers to wait."""
        key = await self._authenticate(request, "read")
        wait = preferences.prefer(headers_of(request).get(b"prefer")).wait
        batch = await self._find(batch_id, key)
        headers = _headers(batch)
        if wait is not None:
            headers["Preference-Applied"] = f"wait={wait}"
            batch = await self._awaited(batch, key, min(wait, self._max_hold), request)
        return await self._answer(batch, 200, headers, root_of(request))

    async def results(self, request: AnyRequest, batch_id: str) -> ResultLines:
        """What came of each input."""
        key = await self._authenticate(request, "read")
        given = _query(request, "after", "limit", "partial")
        after = _number(given, "after", 0, MOST_ITEMS, -1)
        limit = _number(given, "limit", 1, MOST_ITEMS, MOST_ITEMS)
        if given.get("partial", "true") not in {"true", "false"}:
            raise Problem("bad-request", "`partial` must be `true` or `false`.")
        batch = await self._find(batch_id, key)
        if batch.is_running and given.get("partial") != "true":
            raise Problem(
                "not-finished",
                "The batch has jobs that aren't finished; `?partial=true` gives what there is.",
                headers={"Retry-After": str(job_view.retry_after())},
            )
        headers = _headers(batch)
        if after + limit < batch.size - 1:
            partial = f"&partial={given['partial']}" if "partial" in given else ""
            url = f"{batch_view.batch_url(root_of(request), batch_id)}/results"
            headers["Link"] = f'<{url}?after={after + limit}&limit={limit}{partial}>; rel="next"'
        first = await batches.results(self._lists, batch_id, after, min(PAGE, limit))
        return ResultLines(self._lists, batch_id, first, limit, headers, is_head=is_head(request))

    async def cancel(self, request: AnyRequest, batch_id: str) -> Response[bytes]:
        """End its jobs, or ask their runners to."""
        key = await self._authenticate(request, "call")
        batch = await self._find(batch_id, key)
        if batch.is_running:
            await batches.cancel_batch(self._database, batch_id, key.owner_id, f"key:{key.key_id}")
            batch = await self._find(batch_id, key)
        root, headers = root_of(request), _headers(batch)
        if batch.is_running:
            headers["Location"] = batch_view.batch_url(root, batch_id)
        return await self._answer(batch, 202 if batch.is_running else 200, headers, root)

    async def _authenticate(self, request: AnyRequest, scope: Scope) -> KeyRow:
        headers = headers_of(request)
        key = await self._authenticator.owner(headers.get(b"authorization"))
        require(key, scope)
        return key

    async def _find(self, batch_id: str, key: KeyRow) -> Batch:
        batch = None
        if is_job_id(batch_id):
            batch = await batches.find(self._database, batch_id, key.owner_id, actor=self._watcher.actor)
        if batch is None:
            raise Problem("unknown-batch")
        return batch

    async def _awaited(self, batch: Batch, key: KeyRow, seconds: float, request: AnyRequest) -> Batch:
        """The batch when it is finished, or as it is when nobody waits any longer."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        with departure(request.receive, lambda: None) as leaving:
            while batch.is_running and not leaving.done() and not self._watcher.is_closed:
                pause = min(_LOOK_S, ends_at - loop.time())
                if pause <= 0:
                    break
                await asyncio.wait({leaving}, timeout=pause)
                batch = await self._find(batch.batch_id, key)
        return batch

    async def _answer(
        self,
        batch: Batch,
        status: int,
        headers: dict[str, str],
        root: str,
        counts: Any = None,
    ) -> Response[bytes]:
        if counts is None:
            counts = await batches.counts(self._lists, batch.batch_id)
        if batch.is_running:
            headers.setdefault("Retry-After", str(job_view.retry_after()))
        return json_answer(batch_view.encode_batch(batch, counts, root), status, headers)


def batch_handlers(routes: Batches) -> list[Any]:
    """The routes."""

    @post("/fn/{name:str}/batch")
    async def submit_batch(request: AnyRequest, name: FromPath[str]) -> Response[bytes]:
        return await routes.submit(request, name)

    @get("/batches")
    async def list_batches(request: AnyRequest) -> Response[bytes]:
        return await routes.list(request)

    @get("/batches/{batch_id:str}")
    async def show_batch(request: AnyRequest, batch_id: FromPath[str]) -> Response[bytes]:
        return await routes.show(request, batch_id)

    @get("/batches/{batch_id:str}/results")
    async def show_batch_results(request: AnyRequest, batch_id: FromPath[str]) -> ASGIApp:
        return await routes.results(request, batch_id)

    @post("/batches/{batch_id:str}/cancel")
    async def cancel_batch(request: AnyRequest, batch_id: FromPath[str]) -> Response[bytes]:
        return await routes.cancel(request, batch_id)

    return [submit_batch, list_batches, show_batch, show_batch_results, cancel_batch]


def _query(request: AnyRequest, *names: str) -> dict[str, str]:
    """The parameters of the query, each known and given once."""
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in names:
            known = ", ".join(f"`{one}`" for one in names)
            raise Problem("bad-request", f"There is no parameter of that name; there are {known}.")
        if name in given:
            raise Problem("bad-request", f"The parameter `{name}` is given twice.")
        given[name] = value
    return given


def _number(given: dict[str, str], name: str, least: int, most: int, default: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if _NUMBER.fullmatch(value) is None or not least <= int(value) <= most:
        raise Problem("bad-request", f"`{name}` must be a whole number from {least} to {most}.")
    return int(value)


def _headers(batch: Batch) -> dict[str, str]:
    return {"Cache-Control": "no-store", "Headrace-Batch-Id": batch.batch_id}
