"""The jobs that this runner holds: from the claim until the ledger has confirmed their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from gpu_runner.calls import Caller
from gpu_runner.frames import Reported, Streamed
from gpu_runner.jobs.outcomes import EndedBy, outcome_of
from gpu_runner.jobs.unwritten import CREDIT, Unwritten
from gpu_runner.metrics import RunnerMetrics
from headrace.domain import State
from headrace.ledger.execution import Claimed, Held, Outcome, Report
from headrace.link.frames import Answer, Call, Started

log = logging.getLogger(__name__)


class Runs(Protocol):
    """A supervisor, as far as jobs are concerned."""

    def take_job(self, frame: Call, caller: Caller) -> None:
        """Start a claimed job."""
        ...

    def stop(self, job_id: str, caller: Caller) -> None:
        """Ask it to end."""
        ...

    def kill(self, job_id: str, caller: Caller) -> None:
        """Have it end."""
        ...


class HeldJob:
    """One start of a job; the `Caller` of its call.

    Args:
        claimed: what the ledger gave.
        lease_until: until when it is surely this runner's, on the clock of `clock.boot_time`.
        on_end: called once, when `outcome` is there.
        on_report: called when there is `news`: how far it is, and the ledger doesn't know yet.
        on_item: called when there is more that is `unwritten`.
    """

    __slots__ = (
        "_on_end",
        "_on_item",
        "_on_report",
        "claimed",
        "ended_by",
        "is_killed",
        "lease_until",
        "news",
        "outcome",
        "unwritten",
    )

    def __init__(
        self,
        claimed: Claimed,
        lease_until: float,
        on_end: Callable[[HeldJob], None],
        on_report: Callable[[HeldJob], None],
        on_item: Callable[[HeldJob], None] = lambda _: None,
    ) -> None:
        self.claimed = claimed
        self.lease_until = lease_until
        self.outcome: Outcome | None = None
        self.news: Report | None = None
        self.unwritten = Unwritten()
        self.ended_by: EndedBy = ""
        self.is_killed = False
        self._on_end = on_end
        self._on_report = on_report
        self._on_item = on_item

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self.claimed.job_id

    def frame(self, interface: str, *, streams: bool = False) -> Call:
        """The job in the words of a gateway's call; `streams`: what it yields is wanted too."""
        job = self.claimed
        return Call(
            job.job_id,
            job.function,
            interface,
            job.input,
            job.owner_id,
            job.attempt,
            max(0, int(job.remaining_s * 1000)),
            wait_ms=0,
            request_id=job.request_id,
            traceparent=job.traceparent,
            alone=job.alone,
            credit=CREDIT if streams else 0,
        )

    def answer(self, frame: Answer | Started) -> None:
        """Take how the start has ended."""
        if self.outcome is None and not isinstance(frame, Started):
            self.outcome = outcome_of(self.claimed, frame, self.ended_by)
            self._on_end(self)

    def tell(self, frame: Reported | Streamed) -> None:
        """Take how far it is, or what it has yielded."""
        if isinstance(frame, Streamed):
            self.unwritten.add(frame.item)
            self._on_item(self)
            return
        self.news = Report(
            self.job_id, self.claimed.token, self.claimed.attempt, frame.fraction, frame.message
        )
        self._on_report(self)


class HeldJobs:
    """All of them.

    Args:
        supervisor: who runs them.
        interfaces: of the functions that it serves, by name.
        metrics: where they are counted.
        on_outcome: called when one has ended, to have it recorded.
        on_report: called when one has told how far it is.
        on_item: called when one has yielded something.
        streaming: functions that yield.
    """

    def __init__(
        self,
        supervisor: Runs,
        interfaces: dict[str, str],
        metrics: RunnerMetrics,
        on_outcome: Callable[[HeldJob], None],
        on_report: Callable[[HeldJob], None],
        on_item: Callable[[HeldJob], None],
        streaming: Collection[str] = (),
    ) -> None:
        self._supervisor = supervisor
        self._interfaces = interfaces
        self._streaming = frozenset(streaming)
        self._metrics = metrics
        self._on_outcome = on_outcome
        self._on_report = on_report
        self._on_item = on_item
        self._jobs: dict[str, HeldJob] = {}
        self._changed = asyncio.Event()

    def running(self) -> list[HeldJob]:
        """Those that haven't ended."""
        return [job for job in self._jobs.values() if job.outcome is None]

    def named(self) -> list[tuple[Held, HeldJob]]:
        """The complete list, as a renewal sends it, with whom each name stands for."""
        return [
            (Held(job.job_id, job.claimed.token, job.claimed.attempt), job) for job in self._jobs.values()
        ]

    # ------------------------------------------------------------------ from the claim to the end

    def start(self, claimed: Claimed, lease_until: float, *, cancelled: bool = False) -> None:
        """Hold a job that was claimed, and run it; `cancelled` is one whose cancel overtook it."""
        if (older := self._jobs.get(claimed.job_id)) is not None:
            self.lose(older)  # given again, so the earlier start isn't this runner's any more
        job = HeldJob(claimed, lease_until, self._ended, self._reported, self._yielded)
        self._jobs[job.job_id] = job
        self._metrics.claimed(claimed.function)
        frame = job.frame(self._interfaces[claimed.function], streams=claimed.function in self._streaming)
        self._supervisor.take_job(frame, job)
        if cancelled:
            self.cancel(job.job_id)

    def adopt(self, claimed: Claimed, lease_until: float) -> HeldJob:
        """Hold a job that runs already: a direct call that was handed over."""
        if (older := self._jobs.get(claimed.job_id)) is not None:
            self.lose(older)
        job = HeldJob(claimed, lease_until, self._ended, self._reported, self._yielded)
        self._jobs[job.job_id] = job
        return job

    def _reported(self, job: HeldJob) -> None:
        if self._jobs.get(job.job_id) is job:
            self._on_report(job)

    def _yielded(self, job: HeldJob) -> None:
        if self._jobs.get(job.job_id) is job:
            self._on_item(job)

    def _ended(self, job: HeldJob) -> None:
        self._changed.set()
        if self._jobs.get(job.job_id) is job:
            self._on_outcome(job)

    def confirm(self, job: HeldJob, state: State | None) -> None:
        """The ledger has taken the outcome; None: the start wasn't this runner's any more."""
        assert job.outcome is not None
        is_held = self._jobs.get(job.job_id) is job
        if state is not None:
            self._metrics.finished(job.claimed.function, job.outcome.kind)
        elif is_held:  # else it was lost, and counted, when it was given again
            log.warning("job %s (attempt %d) is not held any more: its outcome is discarded", *_name(job))
            self._metrics.fenced(job.claimed.function)
        if is_held:
            del self._jobs[job.job_id]

    # ------------------------------------------------------------------ what ends them early

    def end(self, job: HeldJob, why: EndedBy) -> None:
        """Ask a job to end."""
        if job.outcome is None and not job.ended_by:
            job.ended_by = why
            self._supervisor.stop(job.job_id, job)

    def kill(self, job: HeldJob, why: EndedBy) -> None:
        """Have a job end now; what else runs in its executor is lost with it, uncharged."""
        if job.outcome is None and not job.is_killed:
            job.is_killed = True
            job.ended_by = job.ended_by or why
            log.warning("job %s (attempt %d) is killed", *_name(job))
            self._supervisor.kill(job.job_id, job)

    def cancel(self, job_id: str) -> bool:
        """Its owner doesn't want it any more; returns whether it is held."""
        job = self._jobs.get(job_id)
        if job is not None:
            self.end(job, "cancel")
        return job is not None

    def lose(self, job: HeldJob) -> None:
        """A start isn't this runner's any more: it is stopped, and what comes of it discarded."""
        if self._jobs.get(job.job_id) is not job:
            return
        del self._jobs[job.job_id]
        log.warning("job %s (attempt %d) is not held any more: it is stopped", *_name(job))
        self._metrics.fenced(job.claimed.function)
        self._changed.set()
        self._supervisor.stop(job.job_id, job)

    async def all_ended(self) -> None:
        """Return when no held job runs."""
        while self.running():
            self._changed.clear()
            await self._changed.wait()


def _name(job: HeldJob) -> tuple[str, int]:
    return job.job_id, job.claimed.attempt
