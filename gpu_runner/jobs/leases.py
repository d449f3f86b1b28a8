"""Keeps this runner's right to its jobs, and ends what runs when that is about to be lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Callable, Generator

from gpu_runner.clock import boot_time
from gpu_runner.jobs.held import HeldJob, HeldJobs
from gpu_runner.jobs.session import Ledger
from headrace.errors import DatabaseError

log = logging.getLogger(__name__)

_RENEWALS = 6  # in the time of one lease
_MARGIN_S = 2.0  # of a lease isn't relied on; of a short one, a fifth
_KILL = 0.75  # of the margin is left to those that were asked to end
_RETRY_S = 1.0  # after a renewal that failed
_UNSEEN_S = 0.4  # between renewals while they alone show that this runner lives
_ANNOUNCED = 8  # names of claims that a renewal lists before they are used


class ClaimIds:
    """Names for claims, listed by renewals before they are used.

    A renewal gives back what its list lacks. A claim that begins while a renewal is on its way, and is
    quicker, would lose all that it got: so it takes a name that the renewal lists, or waits for its end.
    """

    def __init__(self) -> None:
        self._next = deque(str(uuid.uuid4()) for _ in range(_ANNOUNCED))
        self._in_flight: set[str] = set()
        self._listed: frozenset[str] | None = None
        self._settled = asyncio.Event()
        self._settled.set()

    async def take(self) -> str:
        """The name of a claim that begins now."""
        while self._listed is not None and self._next[0] not in self._listed:
            await self._settled.wait()
        claim_id = self._next.popleft()
        self._next.append(str(uuid.uuid4()))
        self._in_flight.add(claim_id)
        return claim_id

    def done(self, claim_id: str) -> None:
        """What the claim brought is held now; or nothing can come of it any more."""
        self._in_flight.discard(claim_id)

    @contextlib.contextmanager
    def listed(self) -> Generator[list[str]]:
        """The names that a renewal must list, while it is on its way."""
        self._listed = frozenset((*self._in_flight, *self._next))
        self._settled.clear()
        try:
            yield [*self._listed]
        finally:
            self._listed = None
            self._settled.set()


class Leases:
    """Renews the leases of all jobs that are held.

    Args:
        ledger: where they are kept.
        held: the jobs.
        claims: names of claims.
    """

    def __init__(self, ledger: Ledger, held: HeldJobs, claims: ClaimIds) -> None:
        lease_s = ledger.lease_s
        self._ledger = ledger
        self._lease_s = lease_s
        self._margin_s = _MARGIN_S if lease_s >= 5 * _MARGIN_S else lease_s / 5
        self._held = held
        self._claims = claims
        self._hurry = asyncio.Event()
        self._is_unseen = False
        self.on_guard: Callable[[float], None] = lambda _: None
        """Called with each look at the leases, and its `boot_time`."""

    def lasts_from(self, asked_at: float) -> float:
        """Until when a lease is relied on that was asked for at this `boot_time`."""
        return asked_at + self._lease_s - self._margin_s

    def hurry(self) -> None:
        """Renew now: what was said of cancels meanwhile may have been missed."""
        self._hurry.set()

    def seen(self, is_seen: bool) -> None:
        """Whether the lock of this runner's session shows that it lives; renew now.

        Where it did and doesn't, the runner is taken for lost unless a renewal comes within a second.
        """
        self._is_unseen = not is_seen
        self.hurry()

    # ------------------------------------------------------------------ renewing

    async def renew_for_ever(self) -> None:
        """Renew until cancelled."""
        every = self._lease_s / _RENEWALS
        failing = False
        while True:
            self._hurry.clear()
            busy = False
            try:
                busy = await self.renew()
                if failing:
                    log.info("leases are renewed again")
                failing = False
            except DatabaseError as error:
                if not failing:
                    log.warning("renewing leases failed, trying on: %s", error)
                failing = True
            pause = min(_RETRY_S, every) if failing or busy else every
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_UNSEEN_S, pause) if self._is_unseen else pause):
                    await self._hurry.wait()

    async def renew(self) -> bool:
        """Renew once, by the complete list of what is held.

        Returns:
            Whether any was locked by somebody, so that the next try should be soon.

        Raises:
            DatabaseError: it isn't known whether that worked.
        """
        asked_at = boot_time()
        named = self._held.named()
        with self._claims.listed() as claiming:
            renewal = await self._ledger.renew([name for name, _ in named], claiming)
        lost, busy, cancelled = set(renewal.lost), set(renewal.busy), set(renewal.cancelled)
        for name, job in named:
            if name.job_id in lost:
                if job.outcome is None:  # of one that has ended, the answer to its outcome decides
                    self._held.lose(job)
            elif name.job_id not in busy:
                job.lease_until = self.lasts_from(asked_at)
            if name.job_id in cancelled:
                self._held.end(job, "cancel")
        if renewal.given_back:
            log.warning("%d jobs were given back that this runner never got", renewal.given_back)
        return bool(busy)

    # ------------------------------------------------------------------ running out

    async def guard(self) -> None:
        """End jobs whose leases run out, until cancelled: another runner may start them then."""
        every = self._margin_s / 8
        while True:
            await asyncio.sleep(every)
            now = boot_time()
            for job in self._held.running():
                if now >= job.lease_until:
                    self._end(job, now)
            self.on_guard(now)

    def is_over(self, lease_until: float, now: float) -> bool:
        """Whether what was asked to end as its lease ran out has had its time to do so."""
        return now >= lease_until + _KILL * self._margin_s

    def _end(self, job: HeldJob, now: float) -> None:
        if self.is_over(job.lease_until, now):
            self._held.kill(job, "lease")
        elif not job.ended_by:
            log.warning("the lease of job %s runs out: it is stopped", job.job_id)
            self._held.end(job, "lease")
