"""What came of a batch, on its way to a client: NDJSON in the order of the inputs, a page at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.database import Database
from headrace.domain import FINAL, State
from headrace.errors import DatabaseUnavailable
from headrace.gateway.job_result import PIECE
from headrace.gateway.job_view import Fault, fault_of, timestamp
from headrace.gateway.waking import departure
from headrace.ledger import batches, reading
from headrace.ledger.batches import BatchResult

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

PAGE: Final = 64
"""Results in memory for each client; what is large of them isn't."""

_encode = msgspec.json.Encoder().encode


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    index: int
    job_id: str
    status: State
    error: Fault | None = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class ResultLines:
    """The answer to one client.

    Args:
        database: the ledger's.
        batch_id: whose batch it is was checked.
        first: the first page.
        limit: at most so many lines.
        headers: to send with it, besides those that describe the body.
        is_head: send no body.
    """

    def __init__(
        self,
        database: Database,
        batch_id: str,
        first: list[BatchResult],
        limit: int,
        headers: dict[str, str],
        *,
        is_head: bool,
    ) -> None:
        self._database = database
        self._batch_id = batch_id
        self._page = first
        self._left = limit
        self._headers = {"content-type": "application/x-ndjson", **headers}
        self._is_head = is_head

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. What can't be read any more breaks the connection, as the status was told."""
        sent: Any = send
        pairs = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()
        ]
        await sent({"type": "http.response.start", "status": 200, "headers": pairs})
        if not self._is_head:
            with departure(receive, lambda: None) as leaving:
                while self._page and not leaving.done():
                    await self._send_page(sent)
                    self._page = await self._next_page()
        await sent({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next_page(self) -> list[BatchResult]:
        last = self._page[-1].batch_index
        self._left -= len(self._page)
        if self._left <= 0 or len(self._page) < PAGE:
            return []
        return await batches.results(self._database, self._batch_id, last, min(PAGE, self._left))

    async def _send_page(self, send: Any) -> None:
        lines: list[bytes] = []
        for result in self._page:
            if result.result_size is None or result.small_result is not None:
                lines.append(_line(result))
            else:
                await send(_body(b"".join(lines)))
                lines.clear()
                await self._send_large(result, send)
        await send(_body(b"".join(lines)))

    async def _send_large(self, result: BatchResult, send: Any) -> None:
        """A line whose result is sent piece by piece."""
        size, at = result.result_size or 0, 0
        piece = await reading.result_piece(self._database, result.job_id, 0, PIECE)
        if not piece:
            await send(_body(_line(result)))
            return
        head = _encode(_Line(result.batch_index, result.job_id, result.state))
        await send(_body(head[:-1] + b',"result":'))
        while True:
            await send(_body(piece))
            at += len(piece)
            if at >= size:
                break
            piece = await reading.result_piece(self._database, result.job_id, at, PIECE)
            if not piece:
                raise DatabaseUnavailable(f"the result of job {result.job_id} is gone")
        await send(_body(b"}\n"))


def _line(result: BatchResult) -> bytes:
    """A line whose result, if any, is at hand."""
    fault = fault_of(result)
    if fault is None and result.small_result is None and result.state in FINAL:
        fault = Fault("result-expired", f"The result was kept until {timestamp(result.result_expires_at)}.")
    output = msgspec.UNSET if result.small_result is None else msgspec.Raw(result.small_result)
    return _encode(_Line(result.batch_index, result.job_id, result.state, fault, output)) + b"\n"


def _body(content: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": True}
