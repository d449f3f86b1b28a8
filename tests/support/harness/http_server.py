"""An ASGI application served in the test's own process, by the protocol of the gateway."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
import uvloop

from headrace.gateway.http import Connection


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario on the gateway's event loop, for 20 s at most."""

    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())


@asynccontextmanager
async def server(
    app: Callable[..., Any], protocol: type[Connection] = Connection
) -> AsyncIterator[tuple[str, int]]:
    """The address of a server of an ASGI application that speaks HTTP as the gateway does."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=protocol, lifespan="off", log_config=None, ws="none")
        running = uvicorn.Server(config)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(running, "install_signal_handlers", lambda: None, raising=False)
            serving = asyncio.create_task(running._serve([listening]))
            while not running.started:
                await asyncio.sleep(0.001)
            try:
                yield listening.getsockname()
            finally:
                running.should_exit = running.force_exit = True
                await serving
