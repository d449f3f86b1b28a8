"""Who on this gateway waits for which job, and how they hear of it.

Whoever changes a job that somebody waits for notifies the channel of the waiter's gateway. Notifications
get lost with their connection, so one query a second, and one after each reconnect, asks for all watched
jobs at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

from headrace.database import Database
from headrace.domain import FINAL, State
from headrace.errors import DatabaseError
from headrace.ledger import reading
from headrace.ledger.reading import Job

Receive = Callable[[], Awaitable[Any]]
Standing = tuple[State, int]
"""A job's state, and the number of its last event."""

CHECK_EVERY: Final = 1.0
"""Seconds between two looks at all watched jobs."""

LOOKED_AT_WITHIN_S: Final = 2 * CHECK_EVERY
"""A change of a watched job is known after so many seconds, while Postgres answers."""


class Watch:
    """One waiter for one job; made by `Watcher.watch`."""

    def __init__(self, watcher: Watcher, job_id: str) -> None:
        self.job_id = job_id
        self.has_left = False
        """Whether the client left while it waited."""
        self.is_gone = False
        """Whether the ledger has answered that there is no such job any more."""
        self._watcher = watcher
        self._stirred = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the gateway is about to end, so that nobody should wait any longer."""
        return self._watcher.is_closed

    def stir(self) -> None:
        """Something may have changed; kept until the next `changed`."""
        self._stirred = True
        self.wake()

    def wake(self) -> None:
        """End the present wait, for another reason than the job."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def changed(self, seconds: float) -> bool:
        """Wait for a change of the job since the last call; False when there was none in time.

        Read the job after this, not before: a change that comes meanwhile then ends the next wait at once.
        """
        if not self._stirred and seconds > 0 and not self.is_closed:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self.wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        stirred, self._stirred = self._stirred, False
        return stirred


class Watcher:
    """All watches of one gateway.

    Args:
        database: the ledger's.
        gateway_id: the name under which this gateway's waiters are known in the ledger.
    """

    def __init__(self, database: Database, gateway_id: str) -> None:
        self.gateway_id = gateway_id
        self.is_closed = False
        self._database = database
        self._watches: dict[str, set[Watch]] = {}
        self._standings: dict[str, Standing] = {}

    @property
    def channel(self) -> str:
        """Where this gateway is told of its waiters' jobs; the payload is the job's id."""
        return f"headrace_jobs_{self.gateway_id.replace('-', '')}"

    @property
    def actor(self) -> str:
        """This gateway in the events of jobs that it moves on."""
        return f"gateway:{self.gateway_id}"

    @contextlib.contextmanager
    def watch(self, job_id: str) -> Generator[Watch]:
        """A waiter for a job. Make it before the ledger learns of it, or what comes first is missed."""
        watch = Watch(self, job_id)
        self._watches.setdefault(job_id, set()).add(watch)
        try:
            yield watch
        finally:
            watches = self._watches[job_id]
            watches.remove(watch)
            if not watches:
                del self._watches[job_id]
                self._standings.pop(job_id, None)

    def heard(self, job_id: str) -> None:
        """A notification came."""
        for watch in self._watches.get(job_id, ()):
            watch.stir()

    def tell(self, job_id: str, standing: Standing, *, but: Watch | None = None) -> None:
        """A job was seen standing so; its waiters hear of it when that is news."""
        known = self._standings.get(job_id)
        if known is not None and standing[1] <= known[1]:
            return
        self._standings[job_id] = standing
        for watch in self._watches.get(job_id, ()):
            if watch is not but:
                watch.stir()

    async def check(self) -> None:
        """Look at all watched jobs with one query."""
        job_ids = list(self._watches)
        if not job_ids:
            return
        try:
            standings = await reading.standings(self._database, job_ids)
        except DatabaseError:
            return  # the listener notices too, and has this done again when it is back
        for job_id in job_ids:
            if job_id not in standings:
                self.heard(job_id)  # gone
            elif job_id in self._watches:
                self.tell(job_id, standings[job_id])

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            await self.check()

    def close(self) -> None:
        """End all waits, present and future."""
        self.is_closed = True
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()

    async def begin(self, watch: Watch, *, follow: bool) -> None:
        """Have the ledger tell of the job's end; with `follow` of each start and progress as well.

        Read the job after this. A job that is submitted with its waiter needs neither.
        """
        await reading.watch(self._database, watch.job_id, self.gateway_id, follow=follow)

    async def read(self, watch: Watch) -> Job | None:
        """The watched job, whoever owns it.

        None where it was pruned, which the watch then says, and where Postgres doesn't answer: a later look
        stirs again.
        """
        try:
            job = await reading.find(self._database, watch.job_id, None, actor=self.actor)
        except DatabaseError:
            self.unread(watch)
            return None
        watch.is_gone = job is None
        if job is not None:
            self.tell(watch.job_id, (job.state, job.sequence), but=watch)
        return job

    def unread(self, watch: Watch) -> None:
        """What was told of the job couldn't be read: the next look at it is to be news."""
        self._standings.pop(watch.job_id, None)

    async def until_final(
        self, watch: Watch, job: Job | None, seconds: float, receive: Receive
    ) -> Job | None:
        """The job when it is final, or as it was last read when the time is up.

        Also ends early when the client leaves, or the gateway, or the job was pruned: `watch.is_gone`. Where
        Postgres doesn't answer, it waits on.

        Args:
            watch: the waiter, known to the ledger.
            job: what is known of the job; None where nothing was read yet.
            seconds: how long to wait.
            receive: the ASGI connection's.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        with departure(receive, watch.wake) as leaving:
            while job is None or job.state not in FINAL:
                if await watch.changed(ends_at - loop.time()):
                    job = await self.read(watch) or job
                    if watch.is_gone:
                        break
                elif leaving.done() or watch.is_closed or loop.time() >= ends_at:
                    watch.has_left = leaving.done()
                    break
        return job


@contextlib.contextmanager
def departure(receive: Receive, wake: Callable[[], None]) -> Generator[asyncio.Future[None]]:
    """Done when the client has left, which also wakes the waiter.

    Args:
        receive: the ASGI connection's.
        wake: ends the present wait.
    """
    leaving = asyncio.ensure_future(_departed(receive))
    leaving.add_done_callback(lambda _: wake())
    try:
        yield leaving
    finally:
        leaving.cancel()


async def _departed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
