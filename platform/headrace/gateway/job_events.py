"""A job's events as a stream (server-sent events), from wherever the reader left off to the last one.

Each event of the ledger is one event here, with its number as id: `state` for each step, `result` or `error`
for the end, and between them `item` for what the function yields, and `progress`, of which only the newest is
ever told. What is new is read from the ledger page by page, when there is room to send it, so a slow reader
costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.database import Database
from headrace.domain import FINAL
from headrace.errors import DatabaseError
from headrace.gateway import job_view
from headrace.gateway.exchange import CLIENT_LEFT, Exchange
from headrace.gateway.problems import Problem
from headrace.gateway.sse import HEADERS, HEARTBEAT, HEARTBEAT_S, frame
from headrace.gateway.waking import Watch, Watcher, departure
from headrace.ledger import items
from headrace.ledger.items import Items
from headrace.ledger.reading import Job, JobEvent

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

CUT_OFF: Final = "cut-off"
"""How a stream ends when its gateway does, or when its job is pruned meanwhile."""
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_encode = msgspec.json.Encoder().encode


class EventStream:
    """The answer to one reader.

    Args:
        database: the ledger's.
        watcher: tells of changes.
        job: as it was read, its owner checked; one that was accepted just now is told by its id.
        root: what precedes the platform's paths.
        after: the number of the last event that the reader has.
        is_head: send no events.
    """

    def __init__(
        self,
        database: Database,
        watcher: Watcher,
        job: Job | str,
        root: str,
        *,
        after: int = 0,
        is_head: bool = False,
    ) -> None:
        self.job = None if isinstance(job, str) else job
        """As it was read last."""
        self.items = 0
        """How many items were sent."""
        self.end = CUT_OFF
        """How it ended: `result`, the code of the job's error, `client-left`, or `cut-off`."""
        self._job_id = job if isinstance(job, str) else job.job_id
        self._database = database
        self._watcher = watcher
        self._root = root
        self._is_head = is_head
        newest = 0 if self.job is None else self.job.sequence
        self._is_over = self.job is not None and self.job.state in FINAL and after >= newest
        # Whoever claims to know what hasn't happened yet must still learn of the end.
        self._after: int = min(after, newest)
        self._is_behind = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the last one, or until the client or the gateway leaves.

        Those of a job that is pruned meanwhile just end: whoever comes back learns that there is no such job.
        A reader that has the last one gets 204, which keeps browsers from coming back.
        """
        headers = [*HEADERS, (b"headrace-job-id", self._job_id.encode("ascii"))]
        if self._is_over:
            await _start(send, 204, headers[1:])
            await _body(send, b"", more=False)
            return
        await _start(send, 200, headers)
        if self._is_head:
            await _body(send, b"", more=False)
        else:
            await self._follow(receive, send)

    async def answer(self, exchange: Exchange, *more: tuple[bytes, bytes]) -> None:
        """Send them in the same way, as the answer to the call that the job stands for, with more headers."""
        exchange.follows_job = True
        headers = (
            *HEADERS,
            (b"headrace-job-id", self._job_id.encode("ascii")),
            (b"location", job_view.job_url(self._root, self._job_id).encode("ascii")),
            *more,
        )
        if self._is_over:
            self.end = self._how_it_ended(is_last=True, has_left=False)
            await exchange.answer_nothing(*headers[1:])
        else:
            await exchange.begin(*headers)
            await self._follow(exchange.receive, exchange.send)
        exchange.items = self.items

    async def _follow(self, receive: Receive, send: Send) -> None:
        with self._watcher.watch(self._job_id) as watch:
            with contextlib.suppress(DatabaseError):  # then the look at all watched jobs tells of it
                await self._watcher.begin(watch, follow=True)
            with departure(receive, watch.wake) as leaving:
                await self._stream(watch, leaving, send)
        await _body(send, b"", more=False)

    async def _stream(self, watch: Watch, leaving: asyncio.Future[None], send: Send) -> None:
        frames, is_last = await self._news(watch)
        while True:
            if frames:
                await _body(send, frames, more=True)
            if is_last or leaving.done() or watch.is_closed:
                self.end = self._how_it_ended(is_last=is_last, has_left=leaving.done())
                return
            if self._is_behind or await watch.changed(HEARTBEAT_S):
                frames, is_last = await self._news(watch)
            else:
                frames = HEARTBEAT

    def _how_it_ended(self, *, is_last: bool, has_left: bool) -> str:
        if is_last and self.job is not None and self.job.state in FINAL:
            fault = job_view.fault_of(self.job)
            return "result" if fault is None else fault.category
        return CLIENT_LEFT if has_left else CUT_OFF

    async def _news(self, watch: Watch) -> tuple[bytes, bool]:
        """A page of what the reader hasn't got yet, and whether that is all there will ever be."""
        self._is_behind = False
        try:
            # Its progress is older than the page then, so nothing that comes before it is missing there.
            job = await self._watcher.read(watch)
            parts, self._is_behind = await items.story(self._database, self._job_id, self._after)
            if job is not None and job.state not in FINAL and parts and _is_end(parts[-1]):
                job = await self._watcher.read(watch)  # it ended between the two
            if job is None:
                self._is_behind = False
                return b"", watch.is_gone
            self.job = job
            return self._frames(job, parts)
        except DatabaseError:
            self._watcher.unread(watch)
            return b"", False

    def _frames(self, job: Job, parts: list[JobEvent | Items]) -> tuple[bytes, bool]:
        frames: list[bytes] = []
        progress = job_view.progress_of(job) if job.progress_sequence > self._after else None
        for part in parts:
            if progress is not None and job.progress_sequence < part.sequence:
                frames.append(frame("progress", job.progress_sequence, _encode(progress)))
                progress = None
            if isinstance(part, Items):
                news = part.after(self._after)
                self.items += len(news)
                frames += [frame("item", number, item) for number, item in news]
            elif part.state in FINAL:
                return b"".join([*frames, self._last(job, part)]), True
            else:
                frames.append(_step(part))
            self._after = part.sequence
        if progress is not None and not self._is_behind:
            frames.append(frame("progress", job.progress_sequence, _encode(progress)))
            self._after = job.progress_sequence
        return b"".join(frames), job.state in FINAL and not self._is_behind

    def _last(self, job: Job, step: JobEvent) -> bytes:
        data: dict[str, Any] = {"job_id": job.job_id, **_told(step)}
        if job.state != "succeeded":
            return frame("error", step.sequence, _encode({**data, "error": job_view.fault_of(job)}))
        result = job_view.inline_result(job)
        if result is None:
            data["result_url"] = f"{job_view.job_url(self._root, job.job_id)}/result"
        else:
            data["result"] = msgspec.Raw(result)
        return frame("result", step.sequence, _encode(data))


def _is_end(part: JobEvent | Items) -> bool:
    return isinstance(part, JobEvent) and part.state in FINAL


def _step(step: JobEvent) -> bytes:
    return frame("state", step.sequence, _encode(_told(step)))


def _told(step: JobEvent) -> dict[str, Any]:
    return {
        "status": step.state,
        "attempt": step.attempt,
        "at": job_view.timestamp(step.at),
        "reason": step.reason,
        "by": step.actor,
    }


def goes_on_after(exchange: Exchange, idempotency_key: str | None) -> int:
    """The number of the last event that a client has of its call's stream; 0: it wants all of them.

    Args:
        exchange: its request.
        idempotency_key: the call's.

    Raises:
        Problem: `malformed-header`: it is no number, or nothing tells which call it is of. To execute that
            anew would be to tell all items again, under the numbers of others.
    """
    header = exchange.headers.get(b"last-event-id", b"")
    after = last_event_id(header.decode("latin-1"), None)
    if after and idempotency_key is None:
        raise Problem(
            "malformed-header",
            "Only the stream of a call with an `Idempotency-Key` goes on after `Last-Event-ID`: without the "
            "key nothing tells which call that was. That of a job goes on at `/jobs/{id}/events`.",
        )
    return after


def last_event_id(header: str | None, parameter: str | None) -> int:
    """The number of the last event that a reader has; 0 for none.

    Args:
        header: its `Last-Event-ID`, which a browser sends when it comes back.
        parameter: the same in the address, for whoever can't set headers; the header is newer.

    Raises:
        Problem: `malformed-header` or `bad-request`.
    """
    found: list[int] = []
    for value, code, name in (
        (header, "malformed-header", "The header `Last-Event-ID`"),
        (parameter, "bad-request", "`last_event_id`"),
    ):
        if value := (value or "").strip():
            if _NUMBER.fullmatch(value) is None:
                raise Problem(code, f"{name} must be the `id` of an event of this job: a whole number.")
            found.append(int(value))
    return found[0] if found else 0


async def _start(send: Any, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _body(send: Any, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
