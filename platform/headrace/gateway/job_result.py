"""A job's result on its way to a client: read piece by piece, as fast as the client takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.database import Database
from headrace.errors import DatabaseUnavailable
from headrace.ledger import reading
from headrace.ledger.reading import Job

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

PIECE: Final = 2**20
"""Bytes in memory for each client."""


class ResultStream:
    """The answer to one client.

    Args:
        database: the ledger's.
        job: as it was read, its owner checked.
        first: the beginning of its result, or all of it.
        headers: to send with it, besides those that describe the body.
        is_head: send no body.
    """

    def __init__(
        self, database: Database, job: Job, first: bytes, headers: dict[str, str], *, is_head: bool
    ) -> None:
        self._database = database
        self._job = job
        self._first = first
        self._headers = headers
        self._is_head = is_head

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. A result that expires meanwhile breaks the connection: its length was told."""
        sent: Any = send
        piece, at = (b"", 0) if self._is_head else (self._first, len(self._first))
        size = self._job.result_size or at
        headers = {
            "content-type": "application/json",
            "content-length": str(size),
            **self._headers,
        }
        pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await sent({"type": "http.response.start", "status": 200, "headers": pairs})
        while piece and at < size:
            await sent({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await self._piece(at)
            at += len(piece)
        await sent({"type": "http.response.body", "body": piece, "more_body": False})

    async def _piece(self, at: int) -> bytes:
        piece = await reading.result_piece(self._database, self._job.job_id, at, PIECE)
        if not piece:
            raise DatabaseUnavailable(f"the result of job {self._job.job_id} is gone")
        return piece
