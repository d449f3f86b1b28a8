"""The gateway put together: what it holds, what keeps it up to date, and its Litestar application."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from litestar import HttpMethod, Litestar, Response, post, route
from litestar.datastructures import State
from litestar.params import FromPath

from headrace import intake, keys, registry
from headrace.database import Database, Listener
from headrace.errors import DatabaseError
from headrace.gateway import submitter
from headrace.gateway.auth import Authenticator
from headrace.gateway.batch_call import AT_ONCE, BatchCalls
from headrace.gateway.batches import Batches, batch_handlers
from headrace.gateway.calling import Caller
from headrace.gateway.directory import Directory
from headrace.gateway.functions import fault_of, function_handlers
from headrace.gateway.health import health_handlers
from headrace.gateway.intake import Gate
from headrace.gateway.invoke import Invoke
from headrace.gateway.job_call import JobCalls
from headrace.gateway.jobs import Jobs, job_handlers
from headrace.gateway.lanes import READ_S, Lanes
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.pages import page_handlers
from headrace.gateway.problems import exception_handlers
from headrace.gateway.quotas import Quotas
from headrace.gateway.requests import Requests, request_id_of
from headrace.gateway.retrying import Retries, retry_handlers
from headrace.gateway.routing import Routing
from headrace.gateway.runners import RunnerLinks
from headrace.gateway.submitter import Submitter
from headrace.gateway.waking import Watcher
from headrace.ids import uuid7
from headrace.ledger import lanes, reading, submission
from headrace.maintenance import Maintenance
from headrace.maintenance.chores import Chores
from headrace.maintenance.pruning import Pruning
from headrace.settings import Settings

if TYPE_CHECKING:
    from litestar.types import ASGIApp

_REFRESH_S = 10.0  # runners that fell silent are seen here; everything else is told at once
_LISTS_AT_ONCE = 2
_COUNT_S = 3.0  # a gateway that was silent for 10 s doesn't count


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
        self._gate = Gate(self._is_known)
        self._directory = Directory(self._metrics, self._is_linked, self._gate)
        self._links = RunnerLinks(self._directory.choose)
        self._lanes = Lanes()
        self._authenticator = Authenticator(database, self._database_away)
        self._quotas = Quotas()
        self._watcher = Watcher(database, uuid7())
        self._submits = Database(
            settings.database_url, application_name="headrace-gateway-submit", max_size=submitter.IN_FLIGHT
        )
        self._submitter = Submitter(self._submits, self._metrics, settings.key_ttl)
        self._listener = Listener(
            settings.database_direct_url or settings.database_url,
            [registry.CHANNEL, keys.CHANNEL, self._watcher.channel],
            self._notified,
            self._connected,
            application_name="headrace-gateway-listen",
        )
        self._maintenance = Maintenance(
            settings.database_direct_url or settings.database_url,
            self._watcher.actor,
            lease_s=settings.lease,
            with_cost=settings.backlog_cost > 0 or settings.backlog_age > 0,
        )
        self._chores = Chores(
            database,
            Pruning(
                database,
                job_ttl_s=settings.job_ttl,
                key_ttl_s=settings.key_ttl,
                audit_ttl_s=settings.audit_ttl,
            ),
        )
        # Apart, as a list of very many jobs is the slowest thing that is read: nothing else waits for it.
        self._lists = Database(
            settings.database_url, application_name="headrace-gateway-list", max_size=_LISTS_AT_ONCE
        )
        self._recordings = Database(
            settings.database_url, application_name="headrace-gateway-batch", max_size=AT_ONCE
        )
        self._loaded = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        routing = Routing(
            self._links, settings.brief_wait, self._database_away, self._lanes, self._directory.away_s
        )
        invoke = Invoke(
            settings,
            self._directory,
            self._authenticator,
            self._quotas,
            Caller(self._links, self._metrics, self._database_away, self._has_job, routing.back_s),
            JobCalls(
                settings,
                self._directory,
                self._submitter,
                self._watcher,
                database,
                self._database_away,
                self._metrics,
                lambda manifest, cost: routing.snapshot(manifest, cost).predicted,
            ),
            routing,
            self._metrics,
        )
        self.app: ASGIApp = Requests(
            _application(
                settings,
                [
                    *function_handlers(self._directory, self._authenticator, self._links, routing),
                    *job_handlers(
                        Jobs(
                            self._authenticator,
                            self._directory,
                            database,
                            self._lists,
                            self._watcher,
                            settings.max_hold,
                        )
                    ),
                    *retry_handlers(
                        Retries(
                            settings,
                            self._authenticator,
                            self._quotas,
                            self._directory,
                            self._submitter,
                            database,
                            self._watcher.actor,
                        )
                    ),
                    *batch_handlers(
                        Batches(
                            BatchCalls(
                                settings,
                                self._directory,
                                self._authenticator,
                                self._quotas,
                                database,
                                self._recordings,
                                self._metrics,
                                self._database_away,
                            ),
                            self._authenticator,
                            database,
                            self._lists,
                            self._watcher,
                            settings.max_hold,
                        )
                    ),
                    *health_handlers(
                        self._directory,
                        self._links,
                        self._metrics,
                        self._database_away,
                        settings.outage_grace,
                    ),
                    *page_handlers(
                        lambda: self._directory.manifests,
                        lambda manifest: (
                            "intake-paused"
                            if self._gate.is_shut(manifest.name)
                            else fault_of(manifest, self._links)
                        ),
                        settings,
                    ),
                ],
            ),
            invoke,
        )

    async def start(self) -> None:
        """Read the registry and begin to listen.

        Raises:
            SettingsError, SetupError: Postgres can't be used as it is set up.
        """
        self._secret = await registry.link_secret(self._database)
        listening = asyncio.create_task(self._listener.run())
        self._tasks = [
            listening,
            asyncio.create_task(self._refresh()),
            asyncio.create_task(self._keep_counting()),
            asyncio.create_task(self._read_lanes()),
            asyncio.create_task(self._watcher.run()),
            asyncio.create_task(self._maintenance.run()),
            asyncio.create_task(self._chores.run()),
            asyncio.create_task(self._metrics.usage.run(self._database)),
        ]
        loaded = asyncio.create_task(self._loaded.wait())
        await asyncio.wait({loaded, listening}, return_when=asyncio.FIRST_COMPLETED)
        loaded.cancel()
        if listening.done():
            listening.result()

    async def broken(self) -> None:
        """Wait until something that must go on for ever has ended, and raise why.

        Without it the gateway would answer, and neither hear nor settle anything any more.
        """
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise RuntimeError("a task of the gateway ended")

    def drain(self) -> None:
        """Answer whoever waits for a job as it stands, and end the streams of events."""
        self._watcher.close()

    async def stop(self) -> None:
        """Let go of Postgres and of the runners."""
        self._watcher.close()
        await self._submitter.close()
        await self._submits.close()
        await self._lists.close()
        await self._recordings.close()
        self._links.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._metrics.usage.end(self._database)

    async def _has_job(self, job_id: str, owner_id: str) -> bool:
        return await reading.find(self._database, job_id, owner_id, actor=self._watcher.actor) is not None

    def _is_linked(self, name: str, interface: str) -> bool:
        return bool(self._links.serving(name, interface))

    async def _is_known(self, owner_id: str, function: str, key: str) -> bool:
        return await submission.remembered(self._database, owner_id, function, key) is not None

    def _database_away(self) -> float:
        return time.monotonic() - self._listener.last_seen

    async def _connected(self) -> None:
        self._authenticator.forget()  # a revocation may have been missed
        await self._read_registry()
        await self._count_gateways()
        await self._watcher.check()  # a job may have ended meanwhile
        self._loaded.set()

    async def _notified(self, channel: str, payload: str) -> None:
        if channel == self._watcher.channel:
            self._watcher.heard(payload)
        elif channel == keys.CHANNEL:
            self._authenticator.forget()
        else:
            await self._read_registry()

    async def _read_registry(self) -> None:
        self._gate.intake = await intake.load(self._database)
        reading = await registry.load(self._database)
        self._links.update(reading.serving, self._secret)
        self._directory.update(reading)

    async def _count_gateways(self) -> None:
        gateways = await registry.gateway_seen(self._database, self._watcher.gateway_id)
        self._quotas.gateways = self._links.gateways = gateways

    async def _keep_counting(self) -> None:
        while True:
            await asyncio.sleep(_COUNT_S)
            if self._listener.connected:
                with contextlib.suppress(DatabaseError):  # the listener notices too, and tells
                    await self._count_gateways()

    async def _read_lanes(self) -> None:
        while True:
            if self._listener.connected:
                with contextlib.suppress(DatabaseError):  # the listener notices too, and tells
                    self._lanes.told(await lanes.lanes(self._database))
            await asyncio.sleep(READ_S)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            if self._listener.connected:
                try:
                    await self._read_registry()
                except DatabaseError:
                    continue  # the listener notices too, and tells


def _application(settings: Settings, handlers: list[Any]) -> Litestar:
    @post("/fn/{name:str}")
    async def call_function(name: FromPath[str]) -> None:
        """Answered by `Invoke`, before Litestar hears of it; the route is here for Litestar's 405."""
        raise AssertionError("calls don't get here")

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
