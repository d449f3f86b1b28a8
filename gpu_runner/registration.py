"""Keeps the runner registered in Postgres while it lives, through every outage of Postgres."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from headrace import registry
from headrace.capacity import Report, encoded
from headrace.database import Database
from headrace.domain import Manifest, RunnerInfo
from headrace.errors import DatabaseError

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
MOST_BYTES = 2**18
"""Of a report."""


class Registration:
    """Registers the runner and sends its heartbeat.

    Args:
        database: an open one.
        info: the runner as gateways shall know it.
        manifests: of its functions.
        metrics_address: where it serves `/metrics`.
        capacity: asked at each heartbeat.
        report: the same; what hasn't changed isn't sent again.
    """

    def __init__(
        self,
        database: Database,
        info: RunnerInfo,
        manifests: Sequence[Manifest],
        metrics_address: str,
        capacity: Callable[[], dict[str, Any]],
        report: Callable[[], Report],
    ) -> None:
        self._database = database
        self._info = info
        self._manifests = manifests
        self._metrics_address = metrics_address
        self._capacity = capacity
        self._report = report
        self._reported = b""
        self._draining = False
        self._ended = False
        self._hurry = asyncio.Event()

    async def keep(self) -> None:
        """Register, then send heartbeats until cancelled."""
        registered = False
        told = False
        while True:
            try:
                registered = await self._beat(registered)
                if told:
                    told = False
                    log.info("Postgres is back")
            except DatabaseError as error:
                if not told:
                    told = True
                    log.warning("heartbeat failed, trying on each second: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._hurry.wait()
            self._hurry.clear()

    async def _beat(self, registered: bool) -> bool:
        runner_id = self._info.runner_id
        if self._ended or (self._draining and not registered):
            return False
        draining, capacity = self._draining, self._capacity()
        if registered and await self._heartbeat(capacity, draining=draining):
            return True
        if draining:
            return False
        # At the start, and when the row was pruned during a long outage.
        await registry.register(
            self._database, self._info, self._manifests, metrics_address=self._metrics_address
        )
        self._hurry.set()  # the next heartbeat comes at once: it says what this runner can do
        log.info("registered as runner %s at %s, of pool %s", runner_id, self._info.address, self._info.pool)
        return True

    async def _heartbeat(self, capacity: dict[str, Any], *, draining: bool) -> bool:
        """Whether the registry knows this runner."""
        report = encoded(self._report(), MOST_BYTES)
        heard = await registry.heartbeat(
            self._database,
            self._info.runner_id,
            capacity,
            draining=draining,
            report=None if report == self._reported else report,
        )
        self._reported = report if heard.reported else b""
        return heard.known

    def drain(self) -> None:
        """Say from now on that this runner takes nothing new: it stays listed until it has left."""
        self._draining = True
        self._hurry.set()

    async def end(self) -> None:
        """Tell gateways that this runner has left; they notice by themselves when Postgres is away."""
        self._ended = True
        try:
            await registry.unregister(self._database, self._info.runner_id)
        except DatabaseError as error:
            log.warning("could not unregister: %s", error)
