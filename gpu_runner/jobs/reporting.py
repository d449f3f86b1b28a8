"""Passes progress on to the ledger: the newest of each job, at most twice a second."""

from __future__ import annotations

import asyncio
import logging

from gpu_runner.jobs.held import HeldJob
from gpu_runner.jobs.session import Ledger
from headrace.errors import DatabaseError

log = logging.getLogger(__name__)

EVERY_S = 0.5


class Reporting:
    """Gathers reports and sends them; what can't be sent isn't sent again, as the next will be newer.

    Args:
        ledger: where they go.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._jobs: dict[HeldJob, None] = {}  # in order
        self._any = asyncio.Event()

    def add(self, job: HeldJob) -> None:
        """Pass on how far a job is."""
        self._jobs[job] = None
        self._any.set()

    async def run(self) -> None:
        """Send reports until cancelled."""
        while True:
            await self._any.wait()
            self._any.clear()
            jobs, self._jobs = self._jobs, {}
            # The last words of a job that has ended go with its outcome.
            reports = {job: job.news for job in jobs if job.outcome is None and job.news is not None}
            if reports:
                try:
                    await self._ledger.progress(list(reports.values()))
                except DatabaseError as error:
                    log.debug("progress of %d jobs was dropped: %s", len(reports), error)
                else:
                    for job, report in reports.items():
                        if job.news is report:
                            job.news = None
            await asyncio.sleep(EVERY_S)
