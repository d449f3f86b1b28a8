"""Procrastinate's own Worker, for chores, and its Python API, for whoever wants to defer entries by it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final, LiteralString, NamedTuple

from procrastinate import App, exceptions, jobs
from procrastinate.connector import BaseAsyncConnector, BaseConnector
from procrastinate.worker import Worker as ProcrastinateWorker
from psycopg.errors import UniqueViolation

from headrace.database import Database, Jsonb, Row
from headrace.errors import DatabaseError, DatabaseUnavailable
from headrace.queue import ENTRY_VERSION, MAINTENANCE_QUEUE, TASK

_log = logging.getLogger(__name__)

POLL_EVERY: Final = 15.0
"""Seconds between two looks for a chore to do. Procrastinate's query passes over all that wait in lanes."""
STALLED_AFTER: Final = 30.0
"""Seconds of silence after which a worker counts as dead; a live one speaks each 10 s."""
END_WITHIN: Final = 1.0
"""Seconds that a chore, and then whatever else hangs, is given when the worker is ended."""
_SHORTEST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_LONG_RUN: Final = 60.0


class Chore(NamedTuple):
    """Slow periodic work, done by one worker of the site at a time.

    Args:
        name: its name in the queue and in logs.
        cron: when, in five fields, or six with the seconds last.
        run: does it; may be cancelled, and must bear being repeated.
    """

    name: str
    cron: str
    run: Callable[[], Awaitable[object]]


def make_app(connector: BaseConnector) -> App:
    """Procrastinate with the one task that entries name: `configure_task(TASK, queue=lane)` makes one.

    It isn't for executing. Runners claim entries in SQL, with a fence and within their free slots, neither
    of which Procrastinate's Worker has.
    """
    app = App(connector=connector)

    @app.task(name=TASK)
    async def run(job_id: str, v: int = ENTRY_VERSION) -> None:  # pyright: ignore[reportUnusedFunction] - registered
        raise NotImplementedError(f"entries are for runners, not for Procrastinate's Worker ({job_id}, v{v})")

    return app


class Worker:
    """Runs chores until it is cancelled, whatever becomes of Postgres meanwhile.

    Every process that may do them runs one; Postgres sees to it that each is done once. A chore that is
    still waiting is not queued a second time, and one that is done leaves nothing behind. One that fails
    is logged, and done again when its time comes.

    Args:
        database: an open one. No LISTEN and no connection of its own is needed.
        chores: what to do.
    """

    def __init__(self, database: Database, chores: Sequence[Chore]) -> None:
        # Procrastinate tells of every chore, and of one outage in several tracebacks; both are told here.
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
        self._connector = _Connector(database)
        self._app = make_app(self._connector)
        for chore in chores:
            self._add(chore)

    async def run(self) -> None:
        """Work until cancelled.

        Procrastinate's Worker ends at the first error of Postgres, by an exception or silently, as the
        error struck its main loop or a task beside it. So a new one is made each time.
        """
        failures = 0
        while True:
            started = monotonic()
            await self._run_once()
            failures = 1 if monotonic() - started > _LONG_RUN else failures + 1
            await asyncio.sleep(_pause(failures))

    def _add(self, chore: Chore) -> None:
        async def work(timestamp: int) -> None:
            await self._clear_stalled()
            try:
                await chore.run()
            except DatabaseError as error:
                _log.warning("the chore %s failed: %s", chore.name, error)
            except Exception:
                _log.exception("the chore %s failed", chore.name)

        name = f"headrace.{chore.name}"
        task = self._app.task(name=name, queue=MAINTENANCE_QUEUE, queueing_lock=name)(work)
        self._app.periodic(cron=chore.cron)(task)

    async def _run_once(self) -> None:
        outages = self._connector.outages
        worker = ProcrastinateWorker(
            self._app,
            queues=[MAINTENANCE_QUEUE],  # with none named it takes the lanes' entries
            fetch_job_polling_interval=POLL_EVERY,
            shutdown_graceful_timeout=END_WITHIN,
            stalled_worker_timeout=STALLED_AFTER,
            listen_notify=False,
            install_signal_handlers=False,
            delete_jobs=jobs.DeleteJobCondition.ALWAYS,
        )
        working = asyncio.create_task(worker.run(), name="chores")
        try:
            await asyncio.wait({working})
        finally:
            # The first request lets a chore end, the next ones break off what waits for Postgres.
            for _ in range(3):
                if not working.done():
                    working.cancel()
                    await asyncio.wait({working}, timeout=2 * END_WITHIN)
        error = None if working.cancelled() else working.exception()
        if self._connector.outages == outages:
            _log.error("Procrastinate's worker ended; starting it again", exc_info=error)

    async def _clear_stalled(self) -> None:
        """Delete what dead workers left behind as being done; nothing else ever would."""
        manager = self._app.job_manager
        with contextlib.suppress(exceptions.ConnectorException):
            await manager.prune_stalled_workers(STALLED_AFTER)
            stalled = await manager.get_stalled_jobs(
                queue=MAINTENANCE_QUEUE, seconds_since_heartbeat=STALLED_AFTER
            )
            for job in stalled:
                await manager.finish_job(job, jobs.Status.FAILED, delete_job=True)


class _Connector(BaseAsyncConnector):
    """Lets Procrastinate use our pool of connections. Its own waits half a minute before it says why not."""

    def __init__(self, database: Database) -> None:
        self.outages = 0
        """How many statements found Postgres away."""
        self._database = database
        self._away = False

    async def execute_query_async(self, query: LiteralString, **arguments: Any) -> None:
        async with self._translated():
            await self._database.execute(query, _adapted(arguments))

    async def execute_query_one_async(self, query: LiteralString, **arguments: Any) -> Row:
        rows = await self.execute_query_all_async(query, **arguments)
        if not rows:
            raise exceptions.NoResult
        return rows[0]

    async def execute_query_all_async(self, query: LiteralString, **arguments: Any) -> list[Row]:
        async with self._translated():
            return await self._database.fetch(query, _adapted(arguments))

    @contextlib.asynccontextmanager
    async def _translated(self) -> AsyncGenerator[None]:
        """Raise what Procrastinate expects, and tell once when Postgres goes and once when it is back."""
        try:
            yield
        except DatabaseUnavailable as error:
            if not self._away:
                _log.warning("chores wait: %s", error)
            self._away = True
            self.outages += 1
            raise exceptions.ConnectorException(str(error)) from error
        except DatabaseError as error:
            if isinstance(cause := error.__cause__, UniqueViolation):
                # By the constraint's name Procrastinate knows that the chore is still waiting.
                raise exceptions.UniqueViolation(
                    constraint_name=cause.diag.constraint_name, queueing_lock=None
                ) from error
            raise exceptions.ConnectorException(str(error)) from error
        if self._away:
            self._away = False
            _log.info("chores go on")


def _adapted(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _adapt(value) for name, value in arguments.items()}


def _adapt(value: Any) -> Any:
    """The value for psycopg, with the dicts in it as jsonb."""
    if isinstance(value, dict):
        return Jsonb(value)
    if isinstance(value, list | tuple):
        made = [_adapt(item) for item in value]  # pyright: ignore[reportUnknownVariableType] - anything
        return made if isinstance(value, list) else tuple(made)
    return value


def _pause(failures: int) -> float:
    """Seconds before the next start: doubling, bounded, and spread so that a site doesn't return as one."""
    longest = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** min(failures, 10))
    return longest * random.uniform(0.5, 1)  # noqa: S311 - spreads load, guards nothing
