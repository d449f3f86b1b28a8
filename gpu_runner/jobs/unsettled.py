"""Ends of calls whose callers know them, though the ledger may have a running job of each, or get it yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from gpu_runner.clock import boot_time
from gpu_runner.jobs.session import Ledger
from gpu_runner.metrics import RunnerMetrics
from headrace.errors import DatabaseBusy, DatabaseError, DatabaseUnavailable
from headrace.ledger.execution import Outcome

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 1.0
MOST_BYTES: Final = 64 * 2**20
"""Of ends that wait to be settled. From then on no more calls are sent to the ledger: what comes beyond it is
of those that had been sent already."""
_END_BYTES: Final = 2**10  # what an end takes without its output, or more


class Unsettled(NamedTuple):
    """How a call has ended whose handover wasn't answered.

    Args:
        function: the call's.
        outcome: what the ledger is told, should it have the job.
        claim_id: of the transaction that may have recorded it.
        until: the `boot_time` from which on nothing can come of that transaction any more.
    """

    function: str
    outcome: Outcome
    claim_id: str
    until: float

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return _END_BYTES + len(self.outcome.output or b"")


class Settling:
    """Tells the ledger of such ends again and again, until it has taken them or surely never had the jobs.

    One that Postgres refuses for good is dropped then too: it would keep its bytes, and those stop handovers.
    Nothing is recorded anew here: a job that the ledger hasn't got isn't wanted any more.

    Args:
        ledger: that may have them.
        on_settled: called with the claim's id of each that is through.
        metrics: where the ends that the ledger takes are counted.
    """

    def __init__(self, ledger: Ledger, on_settled: Callable[[str], None], metrics: RunnerMetrics) -> None:
        self._ledger = ledger
        self._on_settled = on_settled
        self._metrics = metrics
        self._unsettled: dict[str, Unsettled] = {}  # by token
        self._bytes = 0
        self._any = asyncio.Event()

    def add(self, end: Unsettled) -> None:
        """Have one settled; none is dropped while the ledger may yet take it."""
        was_full = self.is_full
        self._unsettled[end.outcome.token] = end
        self._bytes += end.size
        if self.is_full and not was_full:
            log.warning("the ends of %d calls wait for the ledger: no more become jobs", self.count())
        self._any.set()

    @property
    def is_full(self) -> bool:
        """Whether so much waits that nothing may be begun that could add to it."""
        return self._bytes >= MOST_BYTES

    def count(self) -> int:
        """How many aren't."""
        return len(self._unsettled)

    async def run(self) -> None:
        """Settle until cancelled."""
        while True:
            await self._any.wait()
            for end in list(self._unsettled.values()):
                await self._settle(end)
            if self._unsettled:
                await asyncio.sleep(LOOK_AGAIN_S)
            else:
                self._any.clear()

    async def _settle(self, end: Unsettled) -> None:
        job_id = end.outcome.job_id
        is_last = boot_time() >= end.until
        try:
            states = await self._ledger.finish([end.outcome])  # one by one: Postgres may refuse one of them
        except (DatabaseUnavailable, DatabaseBusy) as error:
            self._put_off(job_id, error)
            return
        except DatabaseError as error:
            if not is_last:
                self._put_off(job_id, error)
                return
            log.error(
                "Postgres refuses the end of job %s, which its caller knows, and it is dropped: if the job "
                "is there, it starts again or fails once its lease is over: %s",
                job_id,
                error,
            )
        else:
            if job_id in states:
                self._metrics.finished(end.function, end.outcome.kind)
            elif not is_last:
                return
        del self._unsettled[end.outcome.token]
        self._bytes -= end.size
        self._on_settled(end.claim_id)

    @staticmethod
    def _put_off(job_id: str, error: DatabaseError) -> None:
        log.debug("the end of job %s, which may not be there, can't be recorded yet: %s", job_id, error)
