"""A job's events as a stream (server-sent events), from wherever the reader left off to the last one.

Each event of the ledger is one event here, with its number as id: `state` for each step, `result` or `error`
for the end, and between them `progress`, of which only the newest is ever told. What is new is read from
the ledger when there is room to send it, so a slow reader costs no memory.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.database import Database
from headrace.domain import FINAL
from headrace.errors import DatabaseError
from headrace.gateway import job_view
from headrace.gateway.problems import Problem
from headrace.gateway.waking import Watch, Watcher, departure
from headrace.ledger import reading
from headrace.ledger.reading import Job, JobEvent

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

HEARTBEAT_S: Final = 15.0
"""Seconds of silence after which a comment is sent: shorter than any proxy's patience."""

_HEARTBEAT: Final = b": still here\n\n"
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx would gather events before it passes them on
]
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_encode = msgspec.json.Encoder().encode


class EventStream:
    """The answer to one reader.

    Args:
        database: the ledger's.
        watcher: tells of changes.
        job: as it was read, its owner checked.
        after: the number of the last event that the reader has.
        root: what precedes the platform's paths.
        is_head: send no events.
    """

    def __init__(
        self, database: Database, watcher: Watcher, job: Job, *, after: int, root: str, is_head: bool
    ) -> None:
        self._database = database
        self._watcher = watcher
        self._job = job
        self._root = root
        self._is_head = is_head
        self._is_over = job.state in FINAL and after >= job.sequence
        # Whoever claims to know what hasn't happened yet must still learn of the end.
        self._after = min(after, job.sequence)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the last one, or until the client or the gateway leaves.

        Those of a job that is pruned meanwhile just end: whoever comes back learns that there is no such job.
        A reader that has the last one gets 204, which keeps browsers from coming back.
        """
        headers = [*_HEADERS, (b"headrace-job-id", self._job.job_id.encode("ascii"))]
        if self._is_over:
            await _start(send, 204, headers[1:])
        elif self._is_head:
            await _start(send, 200, headers)
        else:
            with self._watcher.watch(self._job.job_id) as watch:
                await self._watcher.begin(watch, follow=True)
                await _start(send, 200, headers)
                with departure(receive, watch.wake) as leaving:
                    await self._stream(watch, leaving, send)
        await _body(send, b"", more=False)

    async def _stream(self, watch: Watch, leaving: asyncio.Future[None], send: Send) -> None:
        frames, is_last = await self._news(watch)
        while True:
            if frames:
                await _body(send, frames, more=True)
            if is_last or leaving.done() or watch.is_closed:
                return
            if await watch.changed(HEARTBEAT_S):
                frames, is_last = await self._news(watch)
            else:
                frames = _HEARTBEAT

    async def _news(self, watch: Watch) -> tuple[bytes, bool]:
        """What the reader hasn't got yet, and whether that is all there will ever be."""
        try:
            job = await self._watcher.read(watch)
            steps = await reading.events(self._database, self._job.job_id, self._after)
            if job is not None and job.state not in FINAL and steps and steps[-1].state in FINAL:
                job = await self._watcher.read(watch)  # it ended between the two
            if job is None:
                return b"", watch.is_gone
            return self._frames(job, steps)
        except DatabaseError:
            self._watcher.unread(watch)
            return b"", False

    def _frames(self, job: Job, steps: list[JobEvent]) -> tuple[bytes, bool]:
        frames: list[bytes] = []
        progress = job_view.progress_of(job) if job.progress_sequence > self._after else None
        for step in steps:
            if progress is not None and job.progress_sequence < step.sequence:
                frames.append(frame("progress", job.progress_sequence, _encode(progress)))
                progress = None
            if step.state in FINAL:
                return b"".join([*frames, self._last(job, step)]), True
            frames.append(_step(step))
            self._after = step.sequence
        if progress is not None:
            frames.append(frame("progress", job.progress_sequence, _encode(progress)))
            self._after = job.progress_sequence
        return b"".join(frames), job.state in FINAL

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


def frame(kind: str, number: int, data: bytes) -> bytes:
    """One event; data of several lines is sent as several, which the reader joins."""
    lines = b"".join(b"data: %b\n" % line for line in data.splitlines())
    return b"id: %d\nevent: %b\n%b\n" % (number, kind.encode("ascii"), lines)


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
