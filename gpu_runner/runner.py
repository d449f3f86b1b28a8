"""Puts a runner together: fork server, executors, supervisor, link, registration, metrics."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import uvloop
from prometheus_client import start_http_server

from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.executors import ExecutorProcess, start_fork_server
from gpu_runner.link_server import LinkServer
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.registration import Registration
from gpu_runner.supervisor import Supervisor
from headrace import registry
from headrace.domain import RunnerInfo
from headrace.errors import HeadraceError, SetupError
from headrace.link.address import Address
from headrace.process import die_with_parent
from headrace.sdk import Function
from headrace.sdk.bytecode import heavy_imports
from headrace.sdk.discovery import discover
from headrace.settings import Settings, load_settings
from headrace.startup import open_database
from headrace.telemetry import logs

log = logging.getLogger(__name__)

DRAIN_S = 10.0
_HANG_UP_S = 1.0

T = TypeVar("T")


def run_forever() -> int:
    """Run one runner until SIGTERM or SIGINT; returns the exit status."""
    die_with_parent()
    logs.configure()
    try:
        settings = load_settings()
        functions = discover(settings.functions)
        uvloop.run(Runner(settings, functions).run())
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
    """

    def __init__(self, settings: Settings, functions: Mapping[str, Function[Any, Any]]) -> None:
        self._settings = settings
        self._functions = functions
        self._runner_id = str(uuid.uuid4())
        self._metrics = RunnerMetrics(functions)
        self._link: LinkServer | None = None
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain; a second signal cuts that short.

        Raises:
            SetupError: Postgres, the address or the metrics port can't be had.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        async with AsyncExitStack() as stack:
            supervisor = Supervisor(
                self._functions, self._metrics, self._settings.brief_wait, self._services_changed
            )
            self._metrics.watch(supervisor)
            self._start_executors(supervisor, stack)
            try:
                registration = await self._open(supervisor, stack)
            except Stopped:
                return
            await self._stopping.wait()
            await self._leave(supervisor, registration)

    def _signalled(self) -> None:
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()

    def _services_changed(self) -> None:
        if self._link is not None:
            self._link.tell_state()

    def _start_executors(self, supervisor: Supervisor, stack: AsyncExitStack) -> None:
        settings = self._settings
        context = start_fork_server(heavy_imports(self._functions.values()))
        cores = len(os.sched_getaffinity(0))
        config = ExecutorConfig(
            functions=tuple(settings.functions),
            device=settings.device,
            threads=max(1, cores // (settings.executors * settings.runners)),
            path=tuple(sys.path),
            log_errors=settings.log_errors,
        )
        for index in range(settings.executors):
            executor = ExecutorProcess(
                index,
                context,
                config,
                supervisor.executor_ready,
                supervisor.executor_said,
                supervisor.executor_lost,
            )
            supervisor.executors.append(executor)
            stack.push_async_callback(_cancel, asyncio.create_task(executor.keep_running()))

    async def _open(self, supervisor: Supervisor, stack: AsyncExitStack) -> Registration:
        settings = self._settings
        metrics_address = self._serve_metrics(stack)
        database = await self._unless_stopped(
            open_database(
                settings.database_url or _embedded(settings, stack),
                application_name="headrace-runner",
                patience_s=settings.start_patience,
            )
        )
        stack.push_async_callback(database.close)
        secret = await self._unless_stopped(registry.link_secret(database))
        await self._unless_stopped(supervisor.ready.wait())
        address = await self._listen(supervisor, secret, stack)
        info = RunnerInfo(
            self._runner_id,
            address,
            "default",
            {name: function.manifest.interface for name, function in self._functions.items()},
        )
        registration = Registration(
            database,
            info,
            [function.manifest for function in self._functions.values()],
            metrics_address,
            lambda: {
                "device": supervisor.device,
                "executors": len(supervisor.executors),
                "loads": supervisor.loads(),
                "degraded": supervisor.degraded,
            },
        )
        stack.push_async_callback(_cancel, asyncio.create_task(registration.keep()))
        return registration

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
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
        if task.done() and not task.cancelled():
            return task.result()
        raise Stopped

    async def _leave(self, supervisor: Supervisor, registration: Registration) -> None:
        log.info("stopping: taking no new calls")
        supervisor.draining = True
        if self._link is not None:
            self._link.say_goodbye()
        await registration.end()
        draining = asyncio.ensure_future(self._drain(supervisor))
        hurry = asyncio.ensure_future(self._hurrying.wait())
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurry):
            task.cancel()

    async def _drain(self, supervisor: Supervisor) -> None:
        await supervisor.drain(DRAIN_S)
        if self._link is not None:
            await self._link.emptied(_HANG_UP_S)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _embedded(settings: Settings, stack: AsyncExitStack) -> str:
    from headrace.embedded import EmbeddedPostgres  # noqa: PLC0415 - only where Postgres isn't elsewhere

    return stack.enter_context(EmbeddedPostgres(settings.home)).url
