"""The processes of one machine, in the order in which they start, and how they are kept alive."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

import msgspec

from headrace.domain import Manifest
from headrace.embedded import EmbeddedPostgres
from headrace.embedded.home import make_home
from headrace.errors import SetupError
from headrace.settings import Settings
from headrace.site.address import base_url, check_free, get_status
from headrace.site.child import Child, describe_end
from headrace.site.environment import (
    check_runner_addresses,
    gateway_environment,
    site_runner_environment,
)
from headrace.site.key_file import key_path, read_key
from headrace.site.lock import HomeLock

_READY_POLL_S: Final = 0.05
_PATIENCE_S: Final = 30.0
_POSTGRES_POLL_S: Final = 1.0
_GATEWAY_STOP_S: Final = 10.0
RUNNER_STOP_S: Final = 10.0  # after HEADRACE_DRAIN_SECONDS
_HURRY_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 30.0
_HEALTHY_S: Final = 60.0
_LEAST_FREE_BYTES: Final = 2**26
_RUNNER: Final = "gpu_runner"

if TYPE_CHECKING:
    from headrace.database import Database

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Started:
    """A site that answers.

    Args:
        url: its address.
        key: its first key.
        functions: what it can execute.
        degraded: what its runners have but can't execute, with the reasons.
    """

    url: str
    key: str
    functions: dict[str, Manifest]
    degraded: dict[str, str]


class _State(msgspec.Struct):
    """How a function stands, as far as it is read here."""

    runners: int = 0
    degraded: list[str] = []


class Readiness(msgspec.Struct):
    """What `/readyz` answers, as far as it is read here."""

    missing: list[str] = []
    functions: dict[str, _State] = {}
    runners: list[str] = []

    def degraded(self) -> dict[str, list[str]]:
        """What runners have but can't execute, with the reasons; others may be able to."""
        return {name: state.degraded for name, state in self.functions.items() if state.degraded}

    def reasons(self) -> dict[str, str]:
        """Why functions that are there can't be executed, each on one line."""
        return {
            name: " ".join("; ".join(state.degraded).split())
            for name, state in self.functions.items()
            if state.degraded and not state.runners
        }


class Site:
    """Runs a site in this process's home; `start`, then `stop` in any case.

    Args:
        settings: as loaded; without a database URL, the home's embedded Postgres is used.
        tell: gets a line at each step and for whatever happens later.
    """

    _runner_module: ClassVar = _RUNNER
    _drained_until: ClassVar = "the next start"

    def __init__(self, settings: Settings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._postgres = None if settings.database_url else EmbeddedPostgres(settings.home)
        self._lock = HomeLock(settings.home)
        self._tasks: list[asyncio.Task[None]] = []
        self._keepers: dict[Child, asyncio.Task[None]] = {}
        self._in_thread: asyncio.Future[Any] | None = None
        self._failure: asyncio.Future[None] | None = None
        self._has_schema = False
        self._is_ready = False
        self._gateway: Child | None = None
        self._runners: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> Started:
        """Start everything and wait until a runner serves with its models loaded, or says that it can't.

        Raises:
            SetupError: something is in the way, or a process ended before it was ready.
        """
        settings, home = self._settings, self._settings.home
        check_runner_addresses(settings)
        if not home.exists():  # nothing is made for a start that is refused
            check_free(settings.host, settings.port)
        self._prepare_home()
        url = base_url(settings.host, settings.port)
        self._lock.take(url)
        check_free(settings.host, settings.port)
        self._failure = asyncio.get_running_loop().create_future()
        if self._postgres is not None:
            settings = settings.with_database(self._postgres.url)
        # Runners first: loading libraries and models takes longest, and they wait for the database.
        for number in range(1, settings.runners + 1):
            runner = self._make_runner(number)
            self._runners.append(runner)
            await self._launch(runner)
        if self._postgres is not None:
            self._tell("starting Postgres")
            await self._thread(self._postgres.start)
            self._tasks.append(asyncio.create_task(self._watch_postgres(self._postgres)))
        await self._migrate(settings.database_direct_url)
        self._tell("starting the gateway")
        self._gateway = Child(
            "gateway",
            [sys.executable, "-m", "headrace", "gateway"],
            gateway_environment(settings),
            home / "logs" / "gateway.log",
        )
        await self._launch(self._gateway)
        key = await self._first_key(settings)
        self._tell("loading models")
        readiness = await self._or_failure(self._wait_until_ready())
        self._is_ready = True
        known = await self._functions(settings)
        ready = {name for name, state in readiness.functions.items() if state.runners}
        functions = {name: manifest for name, manifest in known.items() if name in ready}
        return Started(url, key, functions, readiness.reasons())

    async def failed(self) -> None:
        """Wait, after the start, until the site can't go on.

        Raises:
            SetupError: it can't; the message says why.
        """
        assert self._failure is not None
        await asyncio.shield(self._failure)

    async def stop(self) -> None:
        """Stop everything in order; data stay. May be called at any point of the start."""
        tasks = [*self._tasks, *self._keepers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure is not None and not self._failure.cancel():
            self._failure.exception()  # seen, also where the start was interrupted
        if self._in_thread is not None:
            await asyncio.wait([self._in_thread])
        # Before it is ready nobody's call is under way, and a runner hears nothing while libraries load.
        gateway_s, runner_s = _HURRY_S, _HURRY_S
        if self._is_ready:
            gateway_s, runner_s = _GATEWAY_STOP_S, self._settings.drain_seconds + RUNNER_STOP_S
        if self._gateway is not None:
            await self._gateway.stop(gateway_s)
        await self._stop_runners(runner_s)
        if self._postgres is not None:
            await asyncio.to_thread(self._postgres.stop)
        self._lock.release()

    def kill(self) -> None:
        """Make a `stop` that is under way quick: gateway and runners end at once."""
        for child in (self._gateway, *self._runners):
            if child is not None:
                child.kill()

    def _prepare_home(self) -> None:
        home = self._settings.home
        try:
            make_home(home)
            for folder in (home / "logs", home / "run"):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            free = shutil.disk_usage(home).free
        except OSError as error:
            raise SetupError(f"{home} can't be used: {error.strerror}; set HEADRACE_HOME") from None
        if self._postgres is not None and free < _LEAST_FREE_BYTES:
            raise SetupError(
                f"the disk that holds {home} is full ({free // 2**20} MiB left): "
                "free some space, or set HEADRACE_HOME"
            )

    def _make_runner(self, number: int, former: Child | None = None) -> Child:
        name = f"runner-{number}"
        return Child(
            name if former is None else former.name,
            [sys.executable, "-m", self._runner_module],
            site_runner_environment(self._settings, number),
            self._settings.home / "logs" / f"{name}.log" if former is None else former.log,
            waits=self._runner_module != _RUNNER,
        )

    async def _stop_runners(self, patience: float) -> None:
        await asyncio.gather(*(runner.stop(patience) for runner in self._runners))

    async def _launch(self, child: Child) -> None:
        await child.start()
        self._keep(child)

    def _keep(self, child: Child) -> None:
        self._keepers[child] = asyncio.create_task(self._keep_alive(child))

    async def _keep_alive(self, child: Child) -> None:
        backoff = 0.5
        while True:
            began = time.monotonic()
            code = await child.wait()
            end = describe_end(code)
            if not self._is_ready and self._has_schema:
                self._fail(child, end)
                return
            if self._is_ready and code == 0 and child in self._runners:
                # Whoever drains a runner, or ends it in order, wants it gone.
                self._tell(
                    f"{child.name} was drained and stays away until {self._drained_until}; log: {child.log}"
                )
                return
            # Before there is a schema, a runner may give up waiting for it; that is no failure.
            backoff = 0.5 if time.monotonic() - began > _HEALTHY_S else backoff
            if self._is_ready:
                self._tell_end(child, end, backoff)
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF_S)
            await child.start()

    def _tell_end(self, child: Child, end: str, backoff: float) -> None:
        self._tell(f"{child.name} ended ({end}); starting it again in {backoff:g} s; log: {child.log}")

    def _fail(self, child: Child, end: str) -> None:
        if self._failure is None or self._failure.done():
            return
        for line in child.last_lines(15):
            self._tell(f"  {child.name} | {line}")
        self._failure.set_exception(
            SetupError(f"{child.name} ended at its start ({end}); its log: {child.log}")
        )

    async def _watch_postgres(self, postgres: EmbeddedPostgres) -> None:
        while True:
            await asyncio.sleep(_POSTGRES_POLL_S)
            if not postgres.is_running():
                self._tell(f"Postgres ended; starting it again; log: {postgres.log}")
                try:
                    await self._thread(postgres.start)
                except SetupError as error:
                    self._tell(str(error))

    async def _migrate(self, url: str) -> None:
        from headrace.migrations import migrate  # noqa: PLC0415 - loads while runners start

        if applied := await self._thread(lambda: migrate(url)):
            self._tell(f"applied {len(applied)} migrations")
        self._has_schema = True

    async def _first_key(self, settings: Settings) -> str:
        from headrace.site.first_key import first_key  # noqa: PLC0415 - loads while runners start

        before = read_key(settings.home)
        async with await open_database(settings) as database:
            key = await first_key(database, settings.home)
        if before not in {None, key}:
            self._tell(f"  the key in {key_path(settings.home)} was no longer valid: a new one replaces it")
        return key

    async def _functions(self, settings: Settings) -> dict[str, Manifest]:
        from headrace import registry  # noqa: PLC0415 - loads while runners start

        async with await open_database(settings) as database:
            return dict((await registry.load(database)).functions)

    async def _ask(self) -> tuple[int, Readiness]:
        status, body = await get_status(self._settings.host, self._settings.port, "/readyz")
        try:
            return status, msgspec.json.decode(body, type=Readiness)
        except msgspec.MsgspecError:
            return status, Readiness()

    async def _wait_until_ready(self) -> Readiness:
        """What the gateway says once a runner is linked, which has then tried to load all its models."""
        told, patient_until = "", time.monotonic() + _PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                status, readiness = await self._ask()
                if status == 200 or readiness.reasons():
                    return readiness
                missing = ", ".join(readiness.missing) or f"the gateway answers {status}"
                if missing != told and time.monotonic() > patient_until:
                    told = missing
                    self._tell(f"still starting: {missing}; logs: {self._settings.home / 'logs'}")
            await asyncio.sleep(_READY_POLL_S)

    async def _or_failure(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        failure = self._failure
        assert failure is not None
        try:
            either: set[asyncio.Future[Any]] = {task, failure}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                failure.result()
            return await task
        finally:
            task.cancel()

    async def _thread(self, work: Callable[[], T]) -> T:
        # Remembered and shielded: `stop` must not overtake work in a thread, which nothing can cancel.
        future = asyncio.ensure_future(_in_thread(work))
        self._in_thread = future
        return await asyncio.shield(future)


async def open_database(settings: Settings) -> Database:
    """The site's database, for a moment.

    Raises:
        DatabaseError: it can't be reached.
    """
    from headrace.database import Database  # noqa: PLC0415 - loads while runners start

    return await Database.open(settings.database_url, application_name="headrace-up", max_size=1)


def _in_thread(work: Callable[[], T]) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(None, work)
