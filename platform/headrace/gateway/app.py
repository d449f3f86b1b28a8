"""The gateway put together: what it holds, what keeps it up to date, and its Litestar application."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from litestar import HttpMethod, Litestar, Response, post, route
from litestar.datastructures import State
from litestar.params import FromPath

from headrace import keys, registry
from headrace.database import Database, Listener
from headrace.errors import DatabaseError
from headrace.gateway.auth import Authenticator
from headrace.gateway.calling import Caller
from headrace.gateway.directory import Directory
from headrace.gateway.functions import fault_of, function_handlers
from headrace.gateway.health import health_handlers
from headrace.gateway.invoke import Invoke
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.pages import page_handlers
from headrace.gateway.problems import exception_handlers
from headrace.gateway.requests import Requests, request_id_of
from headrace.gateway.runners import RunnerLinks
from headrace.settings import Settings

if TYPE_CHECKING:
    from litestar.types import ASGIApp

_REFRESH_S = 10.0  # runners that fell silent are seen here; everything else is told at once


class Gateway:
    """One gateway: start it, serve its `app`, stop it. Make it inside the event loop.

    Args:
        settings: its settings.
        database: an open one; the caller closes it.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._database = database
        self._secret = b""
        self._metrics = GatewayMetrics()
        self._directory = Directory(
            self._metrics, lambda name, interface: bool(self._links.serving(name, interface))
        )
        self._links = RunnerLinks(self._directory.choose)
        self._authenticator = Authenticator(database, self._database_away)
        self._listener = Listener(
            settings.database_direct_url or settings.database_url,
            [registry.CHANNEL, keys.CHANNEL],
            self._notified,
            self._connected,
            application_name="headrace-gateway-listen",
        )
        self._loaded = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        invoke = Invoke(
            settings,
            self._directory,
            self._authenticator,
            Caller(self._links, self._metrics),
            self._metrics,
            self._database_away,
        )
        self.app: ASGIApp = Requests(
            _application(
                settings,
                invoke,
                [
                    *function_handlers(self._directory, self._authenticator, self._links),
                    *health_handlers(
                        self._directory,
                        self._links,
                        self._metrics,
                        self._database_away,
                        settings.outage_grace,
                    ),
                    *page_handlers(
                        lambda: self._directory.manifests,
                        lambda manifest: fault_of(manifest, self._links),
                        settings,
                    ),
                ],
            )
        )

    async def start(self) -> None:
        """Read the registry and begin to listen.

        Raises:
            SettingsError, SetupError: Postgres can't be used as it is set up.
        """
        self._secret = await registry.link_secret(self._database)
        listening = asyncio.create_task(self._listener.run())
        self._tasks = [listening, asyncio.create_task(self._refresh())]
        loaded = asyncio.create_task(self._loaded.wait())
        await asyncio.wait({loaded, listening}, return_when=asyncio.FIRST_COMPLETED)
        loaded.cancel()
        if listening.done():
            listening.result()

    async def stop(self) -> None:
        """Let go of Postgres and of the runners."""
        self._links.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _database_away(self) -> float:
        return time.monotonic() - self._listener.last_seen

    async def _connected(self) -> None:
        self._authenticator.forget()  # a revocation may have been missed
        await self._read_registry()
        self._loaded.set()

    async def _notified(self, channel: str, _payload: str) -> None:
        if channel == keys.CHANNEL:
            self._authenticator.forget()
        else:
            await self._read_registry()

    async def _read_registry(self) -> None:
        reading = await registry.load(self._database)
        self._links.update(reading.runners, self._secret)
        self._directory.update(reading)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            if self._listener.connected:
                try:
                    await self._read_registry()
                except DatabaseError:
                    continue  # the listener notices too, and tells


def _application(settings: Settings, invoke: Invoke, handlers: list[Any]) -> Litestar:
    @post("/fn/{name:str}", middleware=[invoke])
    async def call_function(name: FromPath[str]) -> None:
        """Answered by `Invoke`; the route is here for Litestar to find, and for its 405."""

    @route("/fn/{name:str}", http_method=HttpMethod.OPTIONS, status_code=204)
    async def function_options() -> Response[None]:
        """Litestar's own answer knows only the methods of the handler that came first, as this one must."""
        return Response(None, headers={"Allow": "GET, HEAD, OPTIONS, POST"})

    return Litestar(
        route_handlers=[function_options, call_function, *handlers],
        exception_handlers=exception_handlers(settings.public_url, request_id_of),
        openapi_config=None,
        logging_config=None,
        state=State(),
    )
