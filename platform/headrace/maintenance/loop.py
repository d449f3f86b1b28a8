"""The loop that moves on every job that is past its time."""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import datetime
from typing import Final

from headrace.database import Database, queries
from headrace.errors import DatabaseError, DatabaseUnavailable
from headrace.ledger import lanes, settling
from headrace.ledger.settling import Settled
from headrace.maintenance.clock import ClockGuard
from headrace.maintenance.sessions import SessionWatch, boot_time, reap_lost
from headrace.maintenance.unread import end_unread

_log = logging.getLogger(__name__)
_SQL: Final = queries("maintenance")

PASS_EVERY: Final = 0.25
"""Seconds between two passes."""
GAP: Final = 2.0
"""Seconds from one pass to the next after which leases don't count for as long as one lasts."""
LIMIT: Final = 500
"""Jobs that one pass moves at most; after a full one the next follows at once."""
_LONGEST_PAUSE: Final = 2.0
_UNREAD_EVERY: Final = 2.0


class Maintenance:
    """Expires what could not start in time, fails what is past its deadline, requeues what lost its runner.

    Any number of processes may do it: Postgres lets one at a time, and the others look on.

    Args:
        direct_url: a direct connection, not one through a transaction-pooling proxy. It has one of its own,
            so that its passes wait for nobody, and so that it learns of every interruption: leases count
            only after one connection has lasted for as long as a lease, and a runner is seen to be lost only
            over one connection.
        actor: who does it, for the jobs' events; e.g. `gateway:` and its id.
        lease_s: how long a lease lasts.
        with_cost: whether the site's settings bound the cost, or the age, of what waits.
    """

    def __init__(self, direct_url: str, actor: str, *, lease_s: float, with_cost: bool = False) -> None:
        self._url = direct_url
        self._actor = actor
        self._lease_s = lease_s
        self._with_cost = with_cost
        self._guard = ClockGuard(lease_s)
        self._watch = SessionWatch()
        self._connection: tuple[int, datetime] | None = None
        self._passed_at = self._looked_for_unread_at = self._refreshed_at = float("-inf")
        self._failures = 0
        self._told = self._told_of_lanes = ""

    async def run(self) -> None:
        """Work until cancelled, whatever becomes of Postgres meanwhile."""
        async with Database(self._url, application_name="headrace-maintenance", max_size=1) as database:
            while True:
                pause = await self._pass(database)
                await asyncio.sleep(pause)

    async def _pass(self, database: Database) -> float:
        """One pass; returns the seconds until the next."""
        try:
            settled = await self._settle(database)
            moved = 0 if settled is None else _report(settled)
            await reap_lost(database, self._watch, self._actor)
            await self._end_unread(database)
            await self._refresh_lanes(database)
        except DatabaseError as error:
            return self._failed(error)
        if self._failures:
            self._failures, self._told = 0, ""
            _log.info("maintenance goes on")
        return PASS_EVERY if moved < LIMIT else 0

    async def _settle(self, database: Database) -> Settled | None:
        before = boot_time()
        (row,) = await database.fetch(_SQL["evidence"])
        after = boot_time()
        if jump := self._guard.compare(before, row["now"].timestamp(), after):
            _log.warning("a clock jumped by %+.1f s: leases don't count for %g s", jump, self._lease_s)
        connection = (row["backend"], row["server_started_at"])
        if connection != self._connection:
            self._connection = connection
            self._guard.distrust(after)
        if before - self._passed_at > GAP:
            # The ledger may have been locked, for this process or for the one that holds the turn: then
            # runners couldn't renew either. That somebody else is at it proves nothing.
            self._guard.distrust(after)
        # As of the comparison: a clock that jumps just now makes no lease seem to have run out.
        settled = await settling.settle(
            database, self._actor, reap=self._guard.trusts(after), seen_at=row["now"], limit=LIMIT
        )
        if settled is not None:
            self._passed_at = before
            await settling.count(database, with_cost=self._with_cost)
        return settled

    async def _end_unread(self, database: Database) -> None:
        if boot_time() - self._looked_for_unread_at > _UNREAD_EVERY:
            self._looked_for_unread_at = boot_time()
            await end_unread(database)

    async def _refresh_lanes(self, database: Database) -> None:
        if boot_time() - self._refreshed_at < lanes.REFRESH_EVERY:
            return
        self._refreshed_at = boot_time()
        try:
            await lanes.refresh(database)
        except DatabaseUnavailable:
            raise
        except DatabaseError as error:  # settling goes on all the same
            if str(error) != self._told_of_lanes:
                self._told_of_lanes = str(error)
                _log.error("the lanes' rates are not refreshed: %s", error)

    def _failed(self, error: DatabaseError) -> float:
        if isinstance(error, DatabaseUnavailable):
            self._connection = None
            self._watch.clear()
            if not self._failures:
                _log.warning("maintenance waits: %s", error)
        elif str(error) != self._told:
            self._told = str(error)
            _log.error("maintenance failed: %s", error)
        self._failures += 1
        longest = min(_LONGEST_PAUSE, PASS_EVERY * 2 ** min(self._failures, 10))
        return longest * random.uniform(0.5, 1)  # noqa: S311 - spreads load, guards nothing


def _report(settled: Settled) -> int:
    """Log what was moved, if anything was; returns how many."""
    counts = {
        "expired": settled.expired,
        "failed": settled.failed,
        "cancelled": settled.cancelled,
        "requeued": settled.requeued,
    }
    if moved := sum(counts.values()):
        told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        _log.info("past their time: %s", told)
    return moved
