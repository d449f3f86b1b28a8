"""Counts by minute in the memory of a process, and the task that brings them to Postgres.

What a process has counted of a minute is sent when the minute is over; a crash loses what isn't sent: the
present minute, and of the last one the seconds until it was sent.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable
from typing import Final

from headrace.database import Database
from headrace.errors import DatabaseError
from headrace.histograms import Histogram, cost_bucket
from headrace.usage import storing
from headrace.usage.counts import Minute, Series

log = logging.getLogger(__name__)

MINUTE_S: Final = 60
MOST_MINUTES: Final = 60
"""Minutes that are kept while Postgres is away; of a longer outage the first ones are lost."""
_SPREAD_S: Final = 3.0
_RETRY_S: Final = 5.0


class Recorder:
    """Counts what a process sees.

    Args:
        device: what functions run on here, `cpu` or `cuda`; asked when counts are sent.
        clock: seconds since 1970.
    """

    def __init__(self, device: Callable[[], str] = str, clock: Callable[[], float] = time.time) -> None:
        self._device = device
        self._clock = clock
        self._source = str(uuid.uuid4())
        self._sequence = 0
        self._began = self._minute()
        self._present: dict[tuple[str, str, str, int], Histogram] = {}
        self._over: list[tuple[int, Minute]] = []
        self._sending: list[tuple[int, Minute]] = []

    def observe(self, function: str, kind: str, value: float, cost: float = 0.0, reason: str = "") -> None:
        """Count something of a function.

        Args:
            function: its name.
            kind: what is counted, as in `counts.Kind`.
            value: seconds, or how many calls.
            cost: of the input.
            reason: why, where the kind has several.
        """
        # A plain tuple, in the order of `Series`: made three times a call, it takes a third of the time.
        series = (function, kind, reason, cost_bucket(cost) if cost else 0)
        histogram = self._present.get(series)
        if histogram is None:
            histogram = self._present[series] = Histogram()
        histogram.observe(value)

    async def run(self, database: Database) -> None:
        """Send each minute when it is over, until cancelled, whatever becomes of Postgres meanwhile.

        Args:
            database: an open one.
        """
        # Not all at once: a site's processes add to the same rows, one after the other.
        spread_s = random.uniform(0, _SPREAD_S)  # noqa: S311 - spreads load, guards nothing
        told = False
        while True:
            ends_at = self._began + MINUTE_S
            # The clock may have been set back meanwhile: no pause is longer than a minute.
            await asyncio.sleep(min(MINUTE_S, max(0.0, ends_at - self._clock())))
            if self._turn():
                await asyncio.sleep(spread_s)
            while self._over or self._sending:
                try:
                    await self._send(database)
                    told = False
                except DatabaseError as error:
                    if not told:
                        told = True
                        log.warning("the counts of a minute could not be stored, trying on: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    self._turn()

    async def end(self, database: Database) -> None:
        """Send all that there is, once: the process ends."""
        self._close()
        try:
            while self._over or self._sending:
                await self._send(database)
        except DatabaseError as error:
            log.warning("the counts of the last minute could not be stored: %s", error)

    def _minute(self) -> int:
        return int(self._clock()) // MINUTE_S * MINUTE_S

    def _turn(self) -> bool:
        """Begin a new minute, if the present one is over."""
        if self._minute() == self._began:
            return False
        self._close()
        return True

    def _close(self) -> None:
        if self._present:
            minute = {Series(*series): histogram for series, histogram in self._present.items()}
            self._over.append((self._began, minute))
            self._present = {}
        self._began = self._minute()
        if len(self._over) > MOST_MINUTES:
            del self._over[: len(self._over) - MOST_MINUTES]

    async def _send(self, database: Database) -> None:
        """Send what is over; what was sent without a reply goes again as it was, so that it counts once."""
        if not self._sending:
            self._sending, self._over = self._over, []
            self._sequence += 1
        await storing.add(database, self._source, self._sequence, self._device(), self._sending)
        self._sending = []
