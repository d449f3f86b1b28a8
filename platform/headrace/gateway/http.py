"""Uvicorn's HTTP protocol, with the head and the body of an answer in one system call.

Uvicorn writes them one after the other, and each write is a packet of its own: on small answers that is a
tenth of the whole call.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_JOINED = 2**16  # more is written at once, or a long answer would pile up here unseen by flow control


class _Joined:
    """A transport that writes once an iteration of the event loop; in everything else the one it wraps."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write `data` at the end of this iteration, or now when it is much."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _MOST_JOINED:
            self._flush()

    def close(self) -> None:
        """Write what is left, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        self._size = 0
        if parts:
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))


class JoinedWrites(HttpToolsProtocol):
    """`HttpToolsProtocol` over a transport that joins its writes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        super().connection_made(cast("asyncio.Transport", _Joined(transport, self.loop)))
