"""Both ends ask each second whether the other is there, and give it up after three of silence."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.errors import LinkError
from headrace.link.frames import Ping
from headrace.link.stream import FrameStream

PING_S = 1.0
DEAD_S = 3.0


class Liveness:
    """Pings a stream and aborts it when nothing comes back.

    Args:
        stream: one that has completed its handshake.
    """

    def __init__(self, stream: FrameStream[Any]) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._due_at = self._heard_at + PING_S
        self._timer = self._loop.call_at(self._due_at, self._beat)

    def heard(self) -> None:
        """Something arrived."""
        self._heard_at = self._loop.time()

    def end(self) -> None:
        """Stop pinging."""
        self._timer.cancel()

    def _beat(self) -> None:
        now = self._loop.time()
        if now - self._due_at > PING_S:
            self._heard_at = now  # this process stood still itself: what came meanwhile is yet unread
        silent = now - self._heard_at
        if silent > DEAD_S:
            self._stream.abort(LinkError(f"nothing heard for {silent:.1f} s"))
            return
        self._stream.send(Ping())
        self._due_at = now + PING_S
        self._timer = self._loop.call_at(self._due_at, self._beat)
