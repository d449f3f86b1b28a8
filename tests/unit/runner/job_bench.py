"""A supervisor over scripted executors, fed by a ledger that says only what a test makes it say."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench import MODULES, Bench

from gpu_runner.jobs.feed import JobFeed
from gpu_runner.jobs.finishing import Finishing
from gpu_runner.jobs.handover import Handovers
from gpu_runner.jobs.held import HeldJobs
from gpu_runner.jobs.leases import ClaimIds, Leases
from gpu_runner.jobs.reporting import Reporting
from gpu_runner.jobs.streaming import Streaming
from headrace.domain import State
from headrace.ledger.execution import Claimed, Held, Lane, Outcome, Renewal, Report
from headrace.ledger.handover import HandedOver, Recorded
from headrace.ledger.items import Group, Verdict

_ids = itertools.count()
_LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
STATES: dict[str, State] = {"succeeded": "succeeded", "failed": "failed"}


def a_job(
    function: str = "echo", *, job_id: str = "", attempt: int = 1, left: float = 100, alone: bool = False
) -> Claimed:
    number = next(_ids)
    return Claimed(
        job_id=job_id or f"job-of-ledger-{number}",
        token=f"token-{number}",
        attempt=attempt,
        charged=attempt,
        function=function,
        input=b"{}",
        owner_id="o",
        remaining_s=left,
        waited_s=0.0,
        request_id="request",
        traceparent="",
        alone=alone,
    )


@dataclass
class Row:
    """A job that was handed over, as far as the ledger decides by it."""

    token: str
    state: State = "running"
    writes: int = 0


class ScriptedLedger:
    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.rows: dict[str, Row] = {}
        self.handovers: list[tuple[str, list[HandedOver]]] = []
        self.waiting: defaultdict[str, deque[Claimed]] = defaultdict(deque)
        self.claims: list[tuple[str, list[Lane], list[int]]] = []
        self.most_alone: list[int] = []  # by claim
        self.renewals: list[tuple[list[Held], list[str]]] = []
        self.batches: list[list[Outcome]] = []
        self.reports: list[list[Report]] = []
        self.groups: list[list[Group]] = []
        self.verdicts: dict[str, Verdict] = {}
        self.due: float | None = None
        self.lost: list[str] = []
        self.cancelled: list[str] = []
        self.busy: list[str] = []
        self.fenced: set[str] = set()
        self.trouble: dict[str, Callable[[Any], Exception | None]] = {}
        self.open = defaultdict(asyncio.Event)  # by command: closed gates hold it up
        self.asked = asyncio.Condition()
        commands = ("claim", "renew", "finish", "progress", "add_items", "next_due", "hand_over", "reply")
        for command in commands:
            self.open[command].set()

    async def _pass(self, command: str, what: Any = None) -> None:
        async with self.asked:
            self.asked.notify_all()
        await self.open[command].wait()
        if (trouble := self.trouble.get(command)) and (error := trouble(what)):
            raise error

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that follows from a command."""
        while not condition():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01), self.asked:
                    await self.asked.wait()

    def add(self, *jobs: Claimed) -> None:
        for job in jobs:
            self.waiting[job.function].append(job)

    async def claim(
        self, claim_id: str, lanes: Sequence[Lane], free: Sequence[int], alone: int
    ) -> list[Claimed]:
        self.claims.append((claim_id, list(lanes), list(free)))
        self.most_alone.append(alone)
        left, given = list(free), []
        for lane in lanes:
            waiting = self.waiting[lane.function]
            suspects = [job for job in waiting if job.alone][:alone]
            for job in [*suspects, *(job for job in waiting if not job.alone)][: left[lane.group]]:
                left[lane.group] -= 1
                alone -= job.alone
                waiting.remove(job)
                given.append(job)
        await self._pass("claim", claim_id)
        return given

    async def next_due(self, functions: Sequence[str]) -> float | None:
        await self._pass("next_due")
        due, self.due = self.due, None
        return due

    async def renew(self, held: Sequence[Held], claiming: Sequence[str]) -> Renewal:
        self.renewals.append((list(held), list(claiming)))
        await self._pass("renew")
        return Renewal(lost=self.lost, cancelled=self.cancelled, busy=self.busy, given_back=0)

    async def finish(self, outcomes: Sequence[Outcome]) -> dict[str, State]:
        await self._pass("finish", outcomes)
        self.batches.append(list(outcomes))
        return {
            outcome.job_id: STATES.get(outcome.kind, "queued") for outcome in outcomes if self._takes(outcome)
        }

    def _takes(self, outcome: Outcome) -> bool:
        row = self.rows.get(outcome.job_id)
        if row is None:
            is_handed_over = any(one.token == outcome.token for _, calls in self.handovers for one in calls)
            return not is_handed_over and outcome.job_id not in self.fenced
        if row.token != outcome.token or row.state not in ("running", "cancel_requested"):
            return False
        row.state = STATES.get(outcome.kind, "queued")
        row.writes += 1
        return True

    async def hand_over(self, claim_id: str, calls: Sequence[HandedOver]) -> dict[str, Recorded]:
        self.handovers.append((claim_id, list(calls)))
        await self._pass("hand_over", calls)
        for call in calls:
            self.rows.setdefault(call.job_id, Row(call.token))
        await self._pass("reply", calls)
        return {call.job_id: self._recorded(call) for call in calls}

    def _recorded(self, call: HandedOver) -> Recorded:
        row = self.rows[call.job_id]
        return Recorded(
            job_id=call.job_id,
            verdict="committed" if row.token == call.token else "fenced",
            state=row.state,
            created_at=_LONG_AGO,
            queue_deadline_at=_LONG_AGO,
            deadline_at=_LONG_AGO,
        )

    async def progress(self, reports: Sequence[Report]) -> None:
        await self._pass("progress", reports)
        self.reports.append(list(reports))

    async def add_items(self, groups: Sequence[Group]) -> dict[str, Verdict]:
        await self._pass("add_items", groups)
        self.groups.append(list(groups))
        return {group.job_id: self.verdicts.get(group.job_id, "written") for group in groups}

    @property
    def outcomes(self) -> dict[str, Outcome]:
        return {outcome.job_id: outcome for batch in self.batches for outcome in batch}


class JobBench(Bench):
    def __init__(self, executors: int, lease_s: float, modules: Sequence[str]) -> None:
        super().__init__(executors, brief_wait=10, modules=modules)
        self.ledger = ScriptedLedger(lease_s)
        interfaces = {
            name: function.manifest.interface for name, function in self.supervisor._functions.items()
        }
        self.finishing = Finishing(self.ledger, lambda: self.feed.look_for_due())  # noqa: PLW0108 - made later
        self.reporting = Reporting(self.ledger)
        metrics = self.supervisor._metrics
        self.streaming = Streaming(self.ledger, self.supervisor, self.finishing.add)
        self.held = HeldJobs(
            self.supervisor,
            interfaces,
            metrics,
            self.streaming.end,
            self.reporting.add,
            self.streaming.add,
            [name for name, function in self.supervisor._functions.items() if function.is_streaming],
        )
        self.claim_ids = ClaimIds()
        self.leases = Leases(self.ledger, self.held, self.claim_ids)
        self.feed = JobFeed(
            self.ledger, self.supervisor, interfaces, self.held, self.leases, self.claim_ids, metrics
        )
        self.handovers = Handovers(
            self.ledger, self.supervisor, self.held, self.leases, self.claim_ids, metrics
        )
        self.supervisor.on_handover = self.handovers.record
        self.leases.on_guard = self.handovers.guard
        self.tasks: list[asyncio.Task[Any]] = []

    def begin(self, *works: str) -> None:
        all_works = {
            "feed": self.feed.run,
            "renew": self.leases.renew_for_ever,
            "guard": self.leases.guard,
            "finish": lambda: self.finishing.run(self.held),
            "report": self.reporting.run,
            "stream": self.streaming.run,
            "hand over": self.handovers.run,
            "settle": self.handovers.settling.run,
        }
        self.tasks += [asyncio.create_task(all_works[name]()) for name in works]

    def submit(self, *jobs: Claimed) -> None:
        """Jobs come into their lanes, and their entries notify."""
        self.ledger.add(*jobs)
        for job in jobs:
            self.feed.heard(job.function)

    def starts(self) -> list[str]:
        return [job for executor in self.executors for job in executor.runs]

    async def settled(self) -> None:
        """All that can happen at once has happened: the feed waits for something."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def started(self, job: Claimed) -> None:
        await self.ledger.until(lambda: job.job_id in self.starts())

    def count(self, name: str, **labels: str) -> float:
        return self.supervisor._metrics.registry.get_sample_value(name, labels) or 0.0

    def interrupted(self) -> list[BaseException]:
        return [error for task in self.tasks if task.done() and (error := task.exception())]


@asynccontextmanager
async def job_bench(
    *works: str,
    executors: int = 1,
    lease_s: float = 30.0,
    ready: bool = True,
    modules: Sequence[str] = MODULES,
) -> AsyncIterator[JobBench]:
    bench = JobBench(executors, lease_s, modules)
    if ready:
        for executor in bench.executors:
            executor.become_ready()
    bench.begin(*works)
    await bench.settled()  # the first look has found nothing
    try:
        yield bench
        assert bench.interrupted() == []
    finally:
        for task in bench.tasks:
            task.cancel()
        await asyncio.gather(*bench.tasks, return_exceptions=True)
