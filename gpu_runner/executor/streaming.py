"""What a body yields: kept, and on its way out as long as its reader has room; then the body waits.

A wait for the reader counts as execution: its limits go on, and a stop ends it.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from gpu_runner.frames import CREDIT_BYTES, Streamed
from headrace.errors import InvalidOutput
from headrace.sdk import Call, Function

_LOOK_AGAIN_S = 0.25  # whoever waits sees within this that its soft limit has come


class ItemStream:
    """The stream of one call.

    Args:
        function: whose body yields.
        call: what the body sees of its call.
        credit: how many items may be sent at first; 0: none is to be sent.
        send: takes each item's frame.
    """

    def __init__(
        self, function: Function[Any, Any], call: Call, credit: int, send: Callable[[Streamed], None]
    ) -> None:
        self._function = function
        self._call = call
        self._is_wanted = credit > 0
        self._credit = credit
        self._send = send
        self._granted: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._wake: Callable[[], object] | None = None
        self._items: list[Any] = []
        self._size = 0

    def grant(self, items: int) -> None:
        """So many more may be sent; from any thread."""
        self._granted.put(items)
        wake = self._wake  # it may be taken away meanwhile
        if wake is not None:
            wake()

    def drain(self, body: Iterable[Any]) -> Any:
        """Take what the body yields until it ends; returns the output that it makes.

        Raises:
            InvalidOutput: an item isn't of the declared type, or all are over the output's limit.
            CallStopped: the call was stopped.
        """
        try:
            for item in body:
                data = self._keep(item)
                if self._is_wanted:
                    while self._credit <= 0:
                        self._wait()
                    self._pass_on(data)
        finally:
            if (close := getattr(body, "close", None)) is not None:
                close()  # the body's own end, where it was left half-way
        return self._function.collect(self._items)

    async def drain_async(self, body: AsyncIterable[Any]) -> Any:
        """The same, in the event loop."""
        try:
            async for item in body:
                data = self._keep(item)
                if self._is_wanted:
                    while self._credit <= 0:
                        await self._wait_async()
                    self._pass_on(data)
                    await asyncio.sleep(0)  # it leaves now, though the body may not wait before the next
        finally:
            if (close := getattr(body, "aclose", None)) is not None:
                await close()
        return self._function.collect(self._items)

    def _keep(self, item: Any) -> bytes:
        data = self._function.encode_item(item)
        self._items.append(item)
        self._size += len(data)
        limit = self._function.manifest.limits.output
        if self._size > limit:
            raise InvalidOutput(f"the stream's items have over {limit} bytes, which is the function's limit")
        self._call.check()
        return data

    def _pass_on(self, data: bytes) -> None:
        self._credit -= max(1, -(-len(data) // CREDIT_BYTES))
        self._send(Streamed(self._call.job_id, len(self._items) - 1, data))

    def _wait(self) -> None:
        try:
            self._credit += self._granted.get(timeout=_LOOK_AGAIN_S)
        except queue.Empty:
            self._call.check()

    async def _wait_async(self) -> None:
        granted = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(granted.set)
        try:
            self._credit += self._granted.get_nowait()
        except queue.Empty:
            try:
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await granted.wait()
            except TimeoutError:
                self._call.check()
        finally:
            self._wake = None
