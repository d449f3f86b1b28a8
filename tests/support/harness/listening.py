"""Hearing notifications in a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.database import Listener


@asynccontextmanager
async def hearing(url: str, channel: str) -> AsyncIterator[asyncio.Queue[str]]:
    """The payloads that are sent on a channel from now on."""
    payloads: asyncio.Queue[str] = asyncio.Queue()
    ready = asyncio.Event()
    listener = Listener(url, [channel], lambda _, payload: payloads.put_nowait(payload), ready.set)
    running = asyncio.create_task(listener.run())
    try:
        async with asyncio.timeout(10):
            await ready.wait()
        yield payloads
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
