"""HTTP/1.1 on one connection at a time, cheap enough to measure by: what a benchmark's clients speak."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_WIDEST: Final = 2**20


@dataclass(frozen=True)
class Answer:
    """What came back.

    Args:
        status: the number.
        headers: by lower-case name.
        body: as it came.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


class Wire:
    """Connections to one server, kept for the next request; one that breaks off is closed.

    Args:
        port: of the server, on this machine.
        key: sent with each request; empty: none.
    """

    def __init__(self, port: int, key: str = "") -> None:
        self._port = port
        self._key = f"Authorization: Bearer {key}\r\n" if key else ""
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def request(
        self, method: str, path: str, value: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request, with a value as its JSON body; returns the answer.

        Raises:
            OSError: the connection can't be made, or broke.
            asyncio.IncompleteReadError: the server closed it.
        """
        body = b"" if value is None else json.dumps(value).encode()
        more = "".join(f"{name}: {text}\r\n" for name, text in (headers or {}).items())
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n{self._key}{more}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = self._kept() or await self._connect()
        try:
            writer.write(head.encode() + body)
            answer = await _read(reader)
        except BaseException:  # a timeout, too: what comes later is nobody's
            writer.close()
            raise
        if answer.headers.get("connection") == "close":
            writer.close()
        else:
            self._free.append((reader, writer))
        return answer

    def close(self) -> None:
        """Close what is kept."""
        for _, writer in self._free:
            writer.close()
        self._free.clear()

    def _kept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        while self._free:
            reader, writer = self._free.pop()
            if not reader.at_eof():  # which it is where the server found it idle for too long
                return reader, writer
            writer.close()
        return None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, limit=_WIDEST)


async def _read(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(int(first.split()[1]), headers, body)
