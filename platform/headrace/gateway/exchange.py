"""One call's request and answer, as plain ASGI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from headrace.gateway.cycle import WHOLE
from headrace.gateway.metrics import FunctionMetrics
from headrace.gateway.problems import Problem

if TYPE_CHECKING:
    from litestar.types import Receive, Send

_WANTED = frozenset(
    {
        b"accept",
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"headrace-async",
        b"headrace-deadline",
        b"headrace-place",
        b"headrace-priority",
        b"idempotency-key",
        b"last-event-id",
        b"prefer",
        b"traceparent",
        b"x-request-id",
    }
)
_REPLAYED = (b"idempotent-replayed", b"true")
_VARY = (b"vary", b"Accept, Prefer")
_RESULT = (
    b"x-request-id: %b\r\nvary: Accept, Prefer\r\ncontent-type: application/json\r\n"
    b"server-timing: queue;dur=%.3f, exec;dur=%.3f\r\n"
)


CLIENT_LEFT: Final = "client-left"
"""The code, in access lines and counts, of a call whose client was gone before its answer was complete."""


class ClientLeft(Exception):
    """The client closed its connection; nobody is left to answer."""


class Course(Protocol):
    """What the access line tells of a call that was accepted."""

    @property
    def job_id(self) -> str:
        """Its name on links and in the ledger."""
        ...

    @property
    def attempt(self) -> int:
        """The number of its last start."""
        ...

    @property
    def queue_ms(self) -> float:
        """How long the last start waited."""
        ...

    @property
    def exec_ms(self) -> float:
        """How long it ran."""
        ...


class Exchange(msgspec.Struct):
    """One request and what became of it.

    Args:
        takes_whole: `send` takes `WHOLE` answers.
        is_replay: another call of the same idempotency key came first, and this one joins it.
        wants_events: it is to be answered by server-sent events.
        cost: the input's, where it was priced.
        items: how many items of a stream were written; None where the answer is none.
        follows_job: it is answered by the events of a job, whose end is not its own.
        explains: it is answered with what would become of it; nothing is executed.
        accepted_at: when its input was read and found good, by `time.monotonic()`.
    """

    headers: dict[bytes, bytes]
    job_id: str
    request_id: str
    receive: Receive
    send: Send
    metrics: FunctionMetrics
    root: str = ""
    takes_whole: bool = False
    course: Course | None = None
    function: str = ""
    owner: str = ""
    bytes_in: int = 0
    applied: bytes = b""
    quota: tuple[tuple[bytes, bytes], ...] = ()
    is_replay: bool = False
    wants_events: bool = False
    cost: float = 0.0
    items: int | None = None
    follows_job: bool = False
    explains: bool = False
    accepted_at: float = 0.0
    status: int = 0
    code: str = ""

    async def read_body(self, limit: int) -> bytes:
        """The whole body, refused as soon as it is known to be over the limit or to come too slowly.

        Raises:
            Problem: `payload-too-large` or `request-timeout`.
            ClientLeft: the client is gone.
        """
        declared = self.headers.get(b"content-length")
        if declared is not None and int(declared) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        while True:
            message: Any = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            chunks.append(message.get("body", b""))
            self.bytes_in += len(chunks[-1])
            if self.bytes_in > limit:
                raise _too_large(limit)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)
            if not chunks[-1]:  # `Connection` says so: the rest has been too long in coming
                raise Problem("request-timeout", headers={"Connection": "close"})

    async def answer(self, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
        """Send an answer in JSON, with these headers and those that every answer has."""
        self.status = status
        kind, length = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))
        await self._send(self._headers((kind, length, *more)), body)

    async def answer_result(self, output: bytes, queue_ms: float, exec_ms: float) -> None:
        """Send the output of a call that was executed for it, after such a wait and so long."""
        if not self.takes_whole:
            await self.answer(200, output, server_timing(queue_ms, exec_ms))
            return
        self.status = 200
        headers = _RESULT % (self.request_id.encode("ascii"), queue_ms, exec_ms)
        for name, value in (*self.quota, *self._of_some()):
            headers += b"%b: %b\r\n" % (name, value)
        send: Any = self.send
        await send({"type": WHOLE, "status": 200, "headers": headers, "body": output})

    async def answer_nothing(self, *headers: tuple[bytes, bytes]) -> None:
        """Send an answer without a body (204), with these headers and those that every answer has."""
        self.status = 204
        await self._send(self._headers(headers), b"")

    async def begin(self, *headers: tuple[bytes, bytes]) -> None:
        """Begin an answer that `write` goes on with, with these headers and those that every answer has."""
        self.status = 200
        send: Any = self.send
        await send({"type": "http.response.start", "status": 200, "headers": self._headers(headers)})

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Write a part of an answer, as soon as the client has taken enough of what came before."""
        send: Any = self.send
        await send({"type": "http.response.body", "body": body, "more_body": more})

    async def refuse(self, problem: Problem, public_url: str) -> None:
        """Send a problem."""
        self.code = problem.code
        self.status, headers, body = problem.asgi(public_url, self.request_id)
        headers += (_VARY, *self.quota)
        if self.is_replay:
            headers.append(_REPLAYED)
        await self._send(headers, body)

    def _headers(self, own: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        first = (b"x-request-id", self.request_id.encode("ascii"))
        return [first, _VARY, *self.quota, *own, *self._of_some()]

    def _of_some(self) -> list[tuple[bytes, bytes]]:
        """Those that some of its answers have."""
        headers: list[tuple[bytes, bytes]] = []
        if self.applied:
            headers.append((b"preference-applied", self.applied))
        if self.is_replay:
            headers.append(_REPLAYED)
        return headers

    async def _send(self, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        send: Any = self.send
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def wanted_headers(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers that matter to calls; lines of one name are joined (RFC 9110, section 5.3)."""
    found: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name in _WANTED:
            found[name] = found[name] + b", " + value if name in found else value
    return found


def server_timing(queue_ms: float, exec_ms: float) -> tuple[bytes, bytes]:
    """The header that tells how long a call waited and ran."""
    return b"server-timing", b"queue;dur=%.3f, exec;dur=%.3f" % (queue_ms, exec_ms)


def _too_large(limit: int) -> Problem:
    # The rest of the body isn't read, so the connection can't be used again.
    return Problem(
        "payload-too-large",
        f"The body is over the function's limit of {limit} bytes.",
        headers={"Connection": "close"},
        limit=limit,
    )
