"""Claims jobs for free slots: at most as many as are free, and one claim at a time.

A slot takes one job, or as many of one batched function as should fill a lot. Where a batched function
shares slots with others it isn't known before of which of them jobs wait, so a claim is made in rounds: what
one kind of jobs leaves free the next one may fill.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_runner.clock import boot_time
from gpu_runner.jobs.held import HeldJobs
from gpu_runner.jobs.leases import ClaimIds, Leases
from gpu_runner.jobs.second_look import SecondLook
from gpu_runner.jobs.session import Ledger
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.slots import Slots
from gpu_runner.supervisor import Supervisor
from headrace.errors import DatabaseError
from headrace.ledger.execution import Lane

log = logging.getLogger(__name__)

LOOK_S = 1.0  # the longest time without a look at the queue
_PATIENCE_S = 0.25  # so long is a slot kept for a claim that isn't answered
_MOST_OVERTAKING = 1000
_MOST_JOBS = 256  # of one batched function in one claim


@dataclass(slots=True)
class _Brought:
    """What one claim was for, and what has come of it.

    Args:
        asked: slots that are kept for jobs, by group.
        filled: those of them that were filled.
        tried: the kinds of jobs that were asked for.
        functions: whose jobs came.
        more: groups where more jobs may be waiting than were asked for.
        asked_jobs: for how many jobs it asked.
        jobs: how many came.
    """

    asked: dict[int, int]
    filled: Counter[int] = field(default_factory=Counter[int])
    tried: set[int] = field(default_factory=set[int])
    functions: set[str] = field(default_factory=set[str])
    more: set[int] = field(default_factory=set[int])
    asked_jobs: int = 0
    jobs: int = 0

    def left(self, group: int, slots: Slots) -> int:
        """How many slots of a group are kept still: none once they were let go, as the claim took long."""
        left = self.asked.get(group, 0) - self.filled[group]
        return max(0, min(left, slots.turns.reserved)) if slots.turns.asked else 0


class JobFeed:
    """Brings jobs to a supervisor.

    It wakes when slots are kept for jobs: because something was heard of jobs, because a slot that is a
    job's turn was freed, or because a look is due.

    Args:
        ledger: where they come from.
        supervisor: whose slots are filled.
        interfaces: of the functions that it serves, by name.
        held: takes what was claimed.
        leases: knows how long it may be kept.
        claims: names of claims.
        metrics: where claims are counted.
    """

    def __init__(
        self,
        ledger: Ledger,
        supervisor: Supervisor,
        interfaces: Mapping[str, str],
        held: HeldJobs,
        leases: Leases,
        claims: ClaimIds,
        metrics: RunnerMetrics,
    ) -> None:
        self._ledger = ledger
        self._supervisor = supervisor
        self._placing = supervisor.placing
        self._held = held
        self._leases = leases
        self._claims = claims
        self._metrics = metrics
        self._groups = tuple(supervisor.groups())
        self._lane_group = {name: self._groups.index(supervisor.slots_of(name)) for name in interfaces}
        batched = sorted(set(interfaces) & set(supervisor.joining.per_slot()))
        self._kinds = {**self._lane_group, **{name: len(self._groups) + n for n, name in enumerate(batched)}}
        """For which jobs a claim asks together: those of a group of slots, or of one batched function."""
        self._batched = {self._kinds[name]: name for name in batched}
        self._lanes = [Lane(name, interface, self._kinds[name]) for name, interface in interfaces.items()]
        self._stopped = False
        self._is_claiming = False
        self._overtaking: set[str] = set()
        self._look_at = 0.0
        self._due_at: float | None = None
        self._second_look = SecondLook()
        self._may_have_left_alone = False  # jobs that are to run alone: one at a time is claimed

    # ------------------------------------------------------------------ what is heard

    def heard(self, function: str) -> None:
        """Jobs may be waiting in a function's lane."""
        if not self._stopped:
            self._second_look.heard()
            self._placing.hear([self._supervisor.slots_of(function)])

    def look(self) -> None:
        """Jobs may be waiting anywhere."""
        if not self._stopped:
            self._placing.hear(self._groups)

    def cancelled(self, job_id: str) -> None:
        """A job's cancel was requested, maybe before this runner knows that it holds the job."""
        if not self._held.cancel(job_id) and self._is_claiming and len(self._overtaking) < _MOST_OVERTAKING:
            self._overtaking.add(job_id)

    def look_for_due(self) -> None:
        """A job was put back to wait for a retry: when that is due isn't known."""
        self._look_at = 0.0
        self._placing.wanted.set()

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Claim until `stop`, whatever becomes of Postgres meanwhile."""
        while not self._stopped:
            try:
                await self._wait()
                await self._claim_what_fits()
            except DatabaseError as error:
                log.warning("claiming failed, trying on: %s", error)
                self._placing.let_jobs_go()  # direct calls go on
                await self._until_postgres_answers()
                self.look()
        self._placing.let_jobs_go()

    async def _wait(self) -> None:
        """Return when slots are kept for jobs, or may be."""
        wanted = self._placing.wanted
        while not self._stopped:
            now = time.monotonic()
            if now >= self._look_at:
                await self._ask_what_is_due()
                self.look()
                now = time.monotonic()
                self._look_at = now + LOOK_S
            elif self._due_at is not None and now >= self._due_at:
                self._due_at = None
                self.look()
            elif self._may_have_left_alone and self._placing.alone.is_idle:
                self._may_have_left_alone = False
                self.look()
            if wanted.is_set():
                wanted.clear()  # before the claim: what is heard from here on is a reason for another
                return
            wake_at = self._look_at if self._due_at is None else min(self._look_at, self._due_at)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wake_at - now):
                    await wanted.wait()

    async def _ask_what_is_due(self) -> None:
        seconds = await self._ledger.next_due([lane.function for lane in self._lanes])
        self._due_at = None if seconds is None else time.monotonic() + max(0.0, seconds)

    async def _claim_what_fits(self) -> None:
        bringing = asyncio.ensure_future(self._bring())
        self._is_claiming = True
        try:
            while not (await asyncio.wait({bringing}, timeout=_PATIENCE_S))[0]:
                self._placing.let_jobs_go()
            brought = bringing.result()
        finally:
            bringing.cancel()
            self._is_claiming = False
            self._overtaking.clear()
        if not brought.asked:
            return
        # Those that were served come last now, as slots are shared.
        self._lanes.sort(key=lambda lane: lane.function in brought.functions)
        for group, asked in brought.asked.items():
            # More lots than slots may have come, where jobs cost more than they did so far.
            self._placing.answered(self._groups[group], asked, min(asked, brought.filled[group]))
        if brought.more:
            self._placing.hear(self._groups[group] for group in brought.more)
        delay = self._second_look.claimed(brought.asked_jobs, brought.jobs)
        if delay is not None:
            asyncio.get_running_loop().call_later(delay, self.look)

    def _ask(self) -> _Brought:
        """How many slots are kept for jobs in each group."""
        able = {self._lane_group[name] for name in self._supervisor.claimable()}
        asked: dict[int, int] = {}
        for group, slots in enumerate(self._groups):
            if group not in able or self._stopped:
                self._placing.let_go(slots)
            elif count := slots.turns.ask():
                asked[group] = count
        return _Brought(asked)

    def _next_round(self, brought: _Brought) -> tuple[list[Lane], list[int]]:
        """The lanes to look at next, and for how many jobs of each kind to ask."""
        able = set(self._supervisor.claimable())
        lanes: list[Lane] = []
        free = [0] * (len(self._groups) + len(self._batched))
        kind_of: dict[int, int] = {}
        for lane in self._lanes:
            group, kind = self._lane_group[lane.function], lane.group
            left = brought.left(group, self._groups[group])
            if not left or kind in brought.tried or lane.function not in able:
                continue
            if kind_of.setdefault(group, kind) == kind:
                function = self._batched.get(kind)
                jobs = left if function is None else self._supervisor.joining.jobs_for(function, left)
                free[kind] = min(jobs, max(left, _MOST_JOBS))
                lanes.append(lane._replace(expected_s=self._supervisor.expected_s(lane.function)))
        brought.tried.update(kind_of.values())
        return lanes, free

    async def _bring(self) -> _Brought:
        """Claim, and start what that brings."""
        began = time.monotonic()
        claim_id = await self._claims.take()  # as long as a renewal hangs, maybe
        try:
            if time.monotonic() - began >= _PATIENCE_S:
                self.look()  # what was kept has been let go
            brought = self._ask()
            lanes, free = self._next_round(brought)
            if lanes:
                self._second_look.claiming()
            while lanes:
                await self._claim(claim_id, lanes, free, brought)
                lanes, free = self._next_round(brought)
        finally:
            self._claims.done(claim_id)
        return brought

    async def _claim(self, claim_id: str, lanes: list[Lane], free: list[int], brought: _Brought) -> None:
        alone = int(self._placing.alone.is_idle)  # a runner that is busy with one keeps no others waiting
        asked_at = boot_time()
        with self._metrics.claim_seconds.time():
            claimed = await self._ledger.claim(claim_id, lanes, free, alone)
        self._may_have_left_alone |= not alone or any(job.alone for job in claimed)
        brought.asked_jobs += sum(free)
        brought.jobs += len(claimed)
        for job in claimed:
            group = self._lane_group[job.function]
            turns = self._groups[group].turns
            filled_before = turns.filled
            lease_until = self._leases.lasts_from(asked_at)
            self._held.start(job, lease_until, cancelled=job.job_id in self._overtaking)
            brought.filled[group] += turns.filled - filled_before
            brought.functions.add(job.function)
        got = Counter(self._kinds[job.function] for job in claimed)
        for kind, function in self._batched.items():
            if got[kind]:
                self._placing.share_around(self._supervisor.slots_of(function))
                if got[kind] >= free[kind]:
                    brought.more.add(self._lane_group[function])

    async def _until_postgres_answers(self) -> None:
        while not self._stopped:
            await asyncio.sleep(LOOK_S / 4)
            with contextlib.suppress(DatabaseError):
                await self._ask_what_is_due()
                return

    def stop(self) -> None:
        """Claim nothing more; what a claim in flight brings is given back, as the supervisor drains."""
        self._stopped = True
        self._placing.let_jobs_go()
        self._placing.wanted.set()
