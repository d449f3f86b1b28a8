"""What a runner says of a running call, on its way to a client that follows it.

A client reads as fast as it can or likes to. What it hasn't taken yet waits here, and is bounded by credit: a
runner may send so many items, and more only as these are taken. So a slow client stops its own call's body,
and neither the link nor the other calls on it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from headrace.link.frames import Item, Progress, Started

WINDOW: Final = 64
"""How many credits a runner has at first; of 64 KiB each, as `Credit` says."""

_CREDIT_BYTES: Final = 64 * 2**10
_WORTH_A_FRAME: Final = WINDOW // 4  # credits are granted so many at once, or each item would cost a frame
_encode = msgspec.json.Encoder().encode


class Event(NamedTuple):
    """One event for the client: its kind, its data as JSON, and how much credit it has taken."""

    kind: str
    data: bytes
    credit: int = 0


class CallStream:
    """The events of one call, from the link to whoever writes them; for one reader.

    Progress is kept only until the next one, so that a body which tells much of it costs no memory.
    """

    def __init__(self) -> None:
        self.items = 0
        """Items that have come so far: from the first one on the call can't be started again."""
        self.began_at = 0.0
        """When the present start began to run, by `time.monotonic()`; 0 before."""
        self._events: deque[Event] = deque()
        self._is_told = False
        self._owed = 0
        self._grant: Callable[[int], None] = _to_nobody
        self._waiter: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ from the link

    def open(self, grant: Callable[[int], None]) -> None:
        """A start was sent to a runner, with a whole window; credits go there from now on."""
        self._grant, self._owed, self.began_at = grant, 0, 0.0

    def take(self, frame: Item | Progress | Started) -> None:
        """Take an item, how far the call is, or that it runs, of which the client may learn."""
        match frame:
            case Item():
                self.items += 1
                self._events.append(Event("item", frame.item, max(1, -(-len(frame.item) // _CREDIT_BYTES))))
            case Progress():
                if self._events and self._events[-1].kind == "progress":
                    self._events.pop()
                data = {"fraction": frame.fraction, "message": frame.message}
                self._events.append(Event("progress", _encode(data)))
            case Started():
                self._is_told, self.began_at = True, time.monotonic()
        self._wake()

    def end(self, kind: str, data: bytes) -> None:
        """Nothing comes behind this event."""
        self._events.append(Event(kind, data))
        self._wake()

    # ------------------------------------------------------------------ to the client

    def next(self) -> Event | None:
        """The next event, if there is one."""
        return self._events.popleft() if self._events else None

    def taken(self, credit: int) -> None:
        """The client has taken events of so much credit: the runner may send as much again."""
        self._owed += credit
        if self._owed >= _WORTH_A_FRAME:
            owed, self._owed = self._owed, 0
            self._grant(owed)

    async def news(self, seconds: float) -> bool:
        """Wait until there is an event, or the function has started; False after so many seconds."""
        if not self._events and not self._is_told:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        was_told, self._is_told = self._is_told, False
        return bool(self._events) or was_told

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _to_nobody(_credit: int) -> None:
    """No runner has the call yet."""
