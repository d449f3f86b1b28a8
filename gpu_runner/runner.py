"""Puts a runner together: fork server, executors, supervisor, link, registration, jobs, metrics."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import uvloop
from prometheus_client import start_http_server

from gpu_runner.children.executors import ExecutorProcess, start_fork_server
from gpu_runner.children.family import FAMILY
from gpu_runner.children.watchdog import Warden
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.invoking.ledger import Ledger
from gpu_runner.jobs.half import JobHalf
from gpu_runner.jobs.session import Session
from gpu_runner.link_server import LinkServer
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.operators.requests import Requests
from gpu_runner.pools import of_pool
from gpu_runner.registration import Registration
from gpu_runner.reserves import check_reserves
from gpu_runner.residency.memory import usual_budget
from gpu_runner.slots import MAIN, group_of
from gpu_runner.supervisor import Supervisor
from gpu_runner.tasks import cut_short, end
from headrace import pools, registry
from headrace.cores import crowded, threads_each
from headrace.database import Database
from headrace.domain import RunnerInfo
from headrace.errors import HeadraceError, SetupError
from headrace.link.address import Address
from headrace.maintenance import Maintenance
from headrace.process import die_with_parent
from headrace.sdk import Function
from headrace.sdk.bytecode import heavy_imports
from headrace.sdk.discovery import discover
from headrace.settings import Settings, load_settings
from headrace.startup import open_database
from headrace.telemetry import logs

log = logging.getLogger(__name__)

SAME_NOTICE_S = 1.0
"""Signals that come so soon after the first are the same one: a killed parent's end is told several times."""
_HANG_UP_S = 1.0
_GIVE_BACK_S = 2.0  # for each step of giving back what still runs after that
_HURRIED_S = 0.5  # for each of them from a second signal on
# Claim, renew, finish, progress, heartbeat, maintenance and what calls call never wait for one another.
_CONNECTIONS = 10

T = TypeVar("T")


def run_forever(runner_id: str = "") -> int:
    """Run one runner until SIGTERM or SIGINT, as one with this id if given; returns the exit status."""
    die_with_parent()
    logs.configure()
    try:
        settings = load_settings()
        pool, labels = settings.pool or pools.DEFAULT, pools.read_labels(settings.labels)
        offered = discover(settings.functions, lambda missing: log.warning("not offered: %s", missing))
        functions = of_pool(offered, pool, labels)
        check_reserves(functions.values(), settings.executors)
        uvloop.run(Runner(settings, functions, runner_id).run())
    except HeadraceError as error:
        print(f"headrace runner: {error}", file=sys.stderr)  # noqa: T201 - the one line for the operator
        return 1
    return 0


class Stopped(Exception):
    """The runner was asked to stop before it served."""


class Runner:
    """One runner process.

    Args:
        settings: its settings.
        functions: what it serves.
        runner_id: a UUID that no runner has had; empty for one of its own.
    """

    def __init__(
        self, settings: Settings, functions: Mapping[str, Function[Any, Any]], runner_id: str = ""
    ) -> None:
        self._settings = settings
        self._functions = functions
        self._runner_id = runner_id or str(uuid.uuid4())
        self._metrics = RunnerMetrics(functions)
        self._link: LinkServer | None = None
        self._jobs: JobHalf | None = None
        self._works: list[asyncio.Task[None]] = []
        self._lives: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._stopping_since = 0.0
        self._hurrying = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain; another, a second later or more, cuts that short.

        Raises:
            SetupError: Postgres, the address or the metrics port can't be had, or the direct connection
                to Postgres can't work.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        async with AsyncExitStack() as stack:
            supervisor = Supervisor(
                self._functions,
                self._metrics,
                self._settings.brief_wait,
                self._services_changed,
                self._settings.device_cap,
                self._settings.memory or usual_budget(self._settings.device) // self._settings.runners,
                self._settings.load_timeout,
            )
            self._metrics.watch(supervisor)
            self._start_executors(supervisor, stack)
            try:
                registration = await self._open(supervisor, stack)
            except Stopped:
                return
            await self._until_stopped()
            await self._leave(supervisor, registration)

    async def _until_stopped(self) -> None:
        """Return at the first signal; what must go on for ever and ends before that has failed."""
        stop = asyncio.create_task(self._stopping.wait())
        forever = [*self._works, *self._lives]
        done, _ = await asyncio.wait([stop, *forever], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        for task in done - {stop}:
            task.result()

    def _signalled(self) -> None:
        if not self._stopping.is_set():
            self._begin_to_stop()
        elif time.monotonic() - self._stopping_since >= SAME_NOTICE_S:
            self._hurrying.set()

    def _begin_to_stop(self) -> None:
        """At the first signal, or an operator's request."""
        if not self._stopping.is_set():
            self._stopping_since = time.monotonic()
            self._stopping.set()

    def _services_changed(self) -> None:
        if self._link is not None:
            self._link.tell_state()

    def _start_executors(self, supervisor: Supervisor, stack: AsyncExitStack) -> None:
        settings = self._settings
        executors = settings.executors * settings.runners
        threads = threads_each(executors)
        context = start_fork_server(heavy_imports(self._functions.values()), threads)
        if warning := crowded(executors):
            log.warning("%s", warning)
        config = ExecutorConfig(
            functions=tuple(settings.functions),
            device=settings.device,
            threads=threads,
            path=tuple(sys.path),
            serves=tuple(self._functions),
            log_errors=settings.log_errors,
            memory=settings.memory,
            nice=settings.executor_nice,
        )
        warden = self._start_warden(supervisor, stack)
        stack.push_async_callback(end, asyncio.create_task(FAMILY.keep_server_going()))
        in_main = {name for name, one in self._functions.items() if group_of(one)[0] == MAIN}
        for index in range(settings.executors):
            executor = ExecutorProcess(
                index,
                context,
                config,
                supervisor.executor_ready,
                supervisor.executor_said,
                supervisor.executor_lost,
                warden,
                in_main,
            )
            executor.preload = supervisor.models.preload
            executor.on_unborn = supervisor.models.unborn
            supervisor.executors.append(executor)
            self._lives.append(asyncio.create_task(executor.keep_running()))
            stack.push_async_callback(end, self._lives[-1])

    def _start_warden(self, supervisor: Supervisor, stack: AsyncExitStack) -> Warden:
        def was_frozen(killed: set[int]) -> None:
            for executor in supervisor.executors:
                executor.note_frozen(killed)

        def lease_until() -> float | None:
            return None if self._jobs is None else min(self._jobs.leases_until(), default=math.inf)

        warden = Warden(self._settings.lease, was_frozen)
        warden.start()
        stack.push_async_callback(warden.close)
        stack.push_async_callback(end, asyncio.create_task(warden.keep_beating(lease_until)))
        return warden

    async def _open(self, supervisor: Supervisor, stack: AsyncExitStack) -> Registration:
        settings = self._settings
        metrics_address = self._serve_metrics(stack)
        url = settings.database_url or _embedded(settings, stack)
        database = await self._unless_stopped(
            open_database(
                url,
                application_name="headrace-runner",
                patience_s=settings.start_patience,
                max_size=_CONNECTIONS,
            )
        )
        stack.push_async_callback(database.close)
        secret = await self._unless_stopped(registry.link_secret(database))
        await self._unless_stopped(supervisor.ready.wait())
        address = await self._listen(supervisor, secret, stack)
        info = RunnerInfo(
            self._runner_id,
            address,
            settings.pool or pools.DEFAULT,
            {name: function.manifest.interface for name, function in self._functions.items()},
            pools.read_labels(settings.labels),
        )
        registration = Registration(
            database,
            info,
            [function.manifest for function in self._functions.values()],
            metrics_address,
            lambda: {
                "device": supervisor.device,
                "executors": len(supervisor.executors),
                "calls": sum(slots.load for slots in supervisor.groups()),
                "loads": supervisor.loads(),
                "degraded": supervisor.degraded,
            },
            supervisor.report,
        )
        stack.push_async_callback(end, asyncio.create_task(registration.keep()))
        self._start_jobs(database, settings.database_direct_url or url, supervisor, stack)
        return registration

    def _start_jobs(
        self, database: Database, direct_url: str, supervisor: Supervisor, stack: AsyncExitStack
    ) -> None:
        session = Session(database, self._runner_id, self._settings.lease, self._settings.result_ttl)
        requests = Requests(
            database,
            self._runner_id,
            supervisor,
            self._functions,
            self._settings.drain_seconds,
            self._begin_to_stop,
        )
        invoking = Ledger(database, self._runner_id, self._settings, self._functions)
        stack.push_async_callback(supervisor.invoking.close)
        self._jobs = JobHalf(
            session, direct_url, supervisor, self._functions, self._metrics, requests, invoking
        )
        maintenance = Maintenance(
            direct_url,
            f"runner:{self._runner_id}",
            lease_s=self._settings.lease,
            with_cost=self._settings.backlog_cost > 0 or self._settings.backlog_age > 0,
        )
        self._works = [
            *self._jobs.start(),
            asyncio.create_task(maintenance.run()),
            asyncio.create_task(self._metrics.usage.run(database)),
        ]
        stack.push_async_callback(self._metrics.usage.end, database)
        stack.push_async_callback(end, *self._works)

    async def _listen(self, supervisor: Supervisor, secret: bytes, stack: AsyncExitStack) -> str | None:
        if not self._settings.runner_advertise:
            log.warning("HEADRACE_RUNNER_ADVERTISE is not set: no gateway can reach this runner directly")
            return None
        self._link = LinkServer(supervisor, self._runner_id, secret)
        try:
            address = await self._link.listen(Address.parse(self._settings.runner_advertise))
        except OSError as error:
            wanted = self._settings.runner_advertise
            raise SetupError(
                f"can't listen on HEADRACE_RUNNER_ADVERTISE={wanted}: {error.strerror}"
            ) from error
        stack.callback(self._link.close)
        log.info("listening for gateways on %s", address)
        return str(address)

    def _serve_metrics(self, stack: AsyncExitStack) -> str:
        host, _, port = (self._settings.runner_metrics or "127.0.0.1:0").rpartition(":")
        try:
            server, thread = start_http_server(int(port), host, self._metrics.registry)
        except OSError as error:
            raise SetupError(
                f"can't serve metrics on HEADRACE_RUNNER_METRICS={host}:{port}: {error.strerror}"
            ) from error

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        stack.callback(stop)
        address = f"{host}:{server.server_port}"
        log.info("metrics on http://%s/metrics", address)
        return address

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        """The result of `work`, or `Stopped` when a signal comes first."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stop, *self._lives}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
        if task.done() and not task.cancelled():
            return task.result()
        for life in self._lives:
            if life.done():
                life.result()  # it has failed, and with it the runner
        raise Stopped

    async def _leave(self, supervisor: Supervisor, registration: Registration) -> None:
        log.info("stopping: taking no new calls")
        supervisor.draining = True
        registration.drain()
        if self._link is not None:
            self._link.say_goodbye()
        if self._jobs is not None:
            await self._jobs.stop_claiming(_HURRIED_S)
        await cut_short(self._drain(supervisor), self._hurrying, seconds=None, hurried_s=0)
        for executor in supervisor.executors:
            executor.retire()
        if self._link is not None:
            self._link.leave()  # first: calls beside a job that is killed are lost with it
        if self._jobs is not None:
            await self._jobs.give_back(self._step)
        if self._link is not None:
            for executor in supervisor.executors:
                if executor.calls:
                    executor.kill()
            await self._step(self._link.emptied(_GIVE_BACK_S))
        await self._step(registration.end())

    async def _step(self, work: Coroutine[Any, Any, object]) -> None:
        """Do a part of leaving."""
        await cut_short(work, self._hurrying, seconds=_GIVE_BACK_S, hurried_s=_HURRIED_S)

    async def _drain(self, supervisor: Supervisor) -> None:
        await supervisor.drain(self._settings.drain_seconds)
        if self._link is not None:
            await self._link.emptied(_HANG_UP_S)


def _embedded(settings: Settings, stack: AsyncExitStack) -> str:
    from headrace.embedded import EmbeddedPostgres  # noqa: PLC0415 - only where Postgres isn't elsewhere

    return stack.enter_context(EmbeddedPostgres(settings.home)).url
