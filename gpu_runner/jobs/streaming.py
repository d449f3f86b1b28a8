"""Writes what jobs yield into the ledger, in groups; and lets their bodies go on as it is written.

An item gives its credit back when the ledger has it. So a body never gets further ahead than its first
credit goes: while Postgres is away it waits, and what waits here is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from gpu_runner.calls import Caller
from gpu_runner.jobs.held import HeldJob
from gpu_runner.jobs.session import Ledger
from headrace.errors import DatabaseError, DatabaseUnavailable
from headrace.ledger.items import Group, Verdict

log = logging.getLogger(__name__)

EVERY_S = 0.1
_MOST_BYTES = 2**20  # of items in one statement; a larger one goes alone
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class Granter(Protocol):
    """A supervisor, as far as streams are concerned."""

    def grant(self, job_id: str, items: int, caller: Caller) -> None:
        """Let a call yield so many more."""
        ...


class Streaming:
    """Gathers items and sends them until the ledger has answered for each; outcomes come after them.

    Args:
        ledger: where they go.
        granter: is told when there is room for more.
        on_outcome: called when a job has ended and all that it has yielded was written.
    """

    def __init__(self, ledger: Ledger, granter: Granter, on_outcome: Callable[[HeldJob], None]) -> None:
        self._ledger = ledger
        self._granter = granter
        self._on_outcome = on_outcome
        self._jobs: dict[HeldJob, None] = {}  # in order
        self._any = asyncio.Event()
        self._hurry = asyncio.Event()
        self._emptied = asyncio.Event()
        self._singly = 0

    def add(self, job: HeldJob) -> None:
        """Have what a job has yielded written."""
        if job.unwritten.is_closed:
            self._granter.grant(job.job_id, job.unwritten.close(), job)
            return
        self._jobs[job] = None
        self._any.set()
        if job.unwritten.is_much:
            self._hurry.set()

    def end(self, job: HeldJob) -> None:
        """A job has ended: its outcome goes on once its items are written, and at once where it has none."""
        if job in self._jobs:
            self._hurry.set()
        else:
            self._on_outcome(job)

    async def run(self) -> None:
        """Write items until cancelled."""
        failures = 0
        while True:
            await self._any.wait()
            self._hurry.clear()
            groups = self._next_groups()
            try:
                verdicts = await self._ledger.add_items(list(groups.values()))
            except DatabaseError as error:
                if not failures:
                    log.warning("writing items of %d jobs failed, trying on: %s", len(groups), error)
                failures += 1
                if not isinstance(error, DatabaseUnavailable):
                    self._singly = len(self._jobs)  # Postgres has refused something: whose is it?
                self._put_last(groups)
                await asyncio.sleep(min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2 ** min(failures, 10)))
                continue
            failures = 0
            for job, group in groups.items():
                self._settle(job, len(group.items), verdicts.get(job.job_id, "lost"))
            if "busy" in verdicts.values() or not self._is_pressing():
                await self._pause()

    def _next_groups(self) -> dict[HeldJob, Group]:
        """What is written now: one group of each job, and so many bytes of all."""
        groups: dict[HeldJob, Group] = {}
        names: set[str] = set()
        left = _MOST_BYTES
        for job in self._jobs:
            if job.job_id in names:  # an earlier start of the same job is among them
                continue
            count = job.unwritten.fitting(left) or (0 if groups else 1)
            if not count:
                break
            items = job.unwritten.first(count)
            claimed = job.claimed
            groups[job] = Group(job.job_id, claimed.token, claimed.attempt, job.unwritten.before, items)
            names.add(job.job_id)
            left -= sum(map(len, items))
            if self._singly:
                self._singly -= 1
                break
        return groups

    def _put_last(self, jobs: Iterable[HeldJob]) -> None:
        for job in jobs:
            del self._jobs[job]
            self._jobs[job] = None

    def _settle(self, job: HeldJob, count: int, verdict: Verdict) -> None:
        if verdict == "busy":
            return
        credit = job.unwritten.take(count)
        if verdict == "lost":
            credit += job.unwritten.close()
        del self._jobs[job]
        if job.unwritten:
            self._jobs[job] = None  # behind the others
        if not self._jobs:
            self._any.clear()
            self._emptied.set()
        if job.outcome is None:
            self._granter.grant(job.job_id, credit, job)
        elif not job.unwritten:
            self._on_outcome(job)

    def _is_pressing(self) -> bool:
        return any(job.outcome is not None or job.unwritten.is_much for job in self._jobs)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVERY_S):
                await self._hurry.wait()

    async def flush(self) -> None:
        """Return when the ledger has answered for all."""
        while self._jobs:
            self._emptied.clear()
            await self._emptied.wait()

    def count(self) -> int:
        """Of how many jobs something isn't written."""
        return len(self._jobs)
