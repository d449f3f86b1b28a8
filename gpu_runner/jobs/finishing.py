"""Records outcomes in the ledger: those that come while one batch is on its way make the next."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from gpu_runner.jobs.held import HeldJob, HeldJobs
from gpu_runner.jobs.session import Ledger
from headrace.errors import DatabaseError, DatabaseUnavailable

log = logging.getLogger(__name__)

_MOST = 256  # outcomes in one batch
_MOST_BYTES = 2**20  # of their outputs; a larger one goes alone
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_REFUSED_PAUSE_S = 5.0  # of an outcome that Postgres refuses: its row may be locked
_LAST_WORDS_S = 0.5  # for progress in front of outcomes


class Finishing:
    """Sends outcomes until the ledger has answered for each.

    Args:
        ledger: where they are recorded.
        on_requeued: called when jobs were put back to wait for another start.
    """

    def __init__(self, ledger: Ledger, on_requeued: Callable[[], None]) -> None:
        self._on_requeued = on_requeued
        self._ledger = ledger
        self._waiting: deque[HeldJob] = deque()
        self._alone: deque[HeldJob] = deque()
        self._refused = 0
        self._on_their_way: list[HeldJob] = []
        self._news = asyncio.Event()
        self._emptied = asyncio.Event()

    def add(self, job: HeldJob) -> None:
        """Have a job's outcome recorded."""
        self._waiting.append(job)
        self._news.set()

    @property
    def is_empty(self) -> bool:
        """Whether the ledger has answered for all."""
        return not self.count()

    async def run(self, held: HeldJobs) -> None:
        """Record outcomes until cancelled; `held` hears of each."""
        failures = 0
        while True:
            await self._some()
            batch = self._on_their_way = self._next_batch()
            await self._record_last_words(batch)
            try:
                states = await self._ledger.finish([job.outcome for job in batch if job.outcome])
            except DatabaseError as error:
                if not failures:
                    log.warning("recording %d outcomes failed, trying on: %s", len(batch), error)
                failures += 1
                pause = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2 ** min(failures, 10))
                self._on_their_way = []
                if isinstance(error, DatabaseUnavailable):
                    # Behind the others: it may be its size that took too long.
                    self._waiting.extend(batch)
                    await asyncio.sleep(pause)
                else:
                    self._separate(batch)
                continue
            failures = 0
            self._on_their_way = []
            for job in batch:
                held.confirm(job, states.get(job.job_id))
            if "queued" in states.values():
                self._on_requeued()
            if self.is_empty:
                self._emptied.set()

    async def _record_last_words(self, batch: list[HeldJob]) -> None:
        """What jobs told of their progress just before they ended is known before their end."""
        reports = [job.news for job in batch if job.news is not None]
        if not reports:
            return
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._ledger.progress(reports)
        except DatabaseUnavailable:
            return  # so is the outcome: both are tried again
        except (DatabaseError, TimeoutError) as error:
            log.debug("the last progress of %d jobs was dropped: %s", len(reports), error)
        for job in batch:
            job.news = None

    async def _some(self) -> None:
        while not (self._waiting or self._alone):
            self._news.clear()
            await self._news.wait()

    def _next_batch(self) -> list[HeldJob]:
        if self._alone:
            return [self._alone.popleft()]
        batch: dict[str, HeldJob] = {}
        size = 0
        while self._waiting and len(batch) < _MOST:
            job = self._waiting[0]
            size += len(job.outcome.output or b"") if job.outcome else 0
            # The ledger takes one outcome of a job at a time; and what is large goes alone.
            if batch and (job.job_id in batch or size > _MOST_BYTES):
                break
            batch[job.job_id] = self._waiting.popleft()
        return list(batch.values())

    def _separate(self, batch: list[HeldJob]) -> None:
        """Postgres has refused something: each goes alone now, and one that is refused alone goes later."""
        if len(batch) > 1:
            self._alone.extend(batch)
            return
        self._refused += 1
        asyncio.get_running_loop().call_later(_REFUSED_PAUSE_S, self._again, batch[0])

    def _again(self, job: HeldJob) -> None:
        self._refused -= 1
        self._alone.append(job)
        self._news.set()

    async def flush(self) -> None:
        """Return when the ledger has answered for all."""
        while not self.is_empty:
            self._emptied.clear()
            await self._emptied.wait()

    def count(self) -> int:
        """For how many the ledger hasn't answered."""
        return len(self._waiting) + len(self._alone) + len(self._on_their_way) + self._refused
