"""The half of a runner that executes jobs: claim, run, renew, record; and what it hears from Postgres."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from gpu_runner.invoking.ledger import Ledger
from gpu_runner.jobs.feed import JobFeed
from gpu_runner.jobs.finishing import Finishing
from gpu_runner.jobs.handover import Handovers
from gpu_runner.jobs.held import HeldJobs
from gpu_runner.jobs.leases import ClaimIds, Leases
from gpu_runner.jobs.reporting import Reporting
from gpu_runner.jobs.session import Session
from gpu_runner.jobs.streaming import Streaming
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.operators.requests import Requests
from gpu_runner.supervisor import Supervisor
from gpu_runner.tasks import Step
from headrace import runner_requests
from headrace.database import Listener
from headrace.errors import DatabaseError
from headrace.queue import channel
from headrace.sdk import Function

log = logging.getLogger(__name__)


class JobHalf:
    """Everything that moves jobs through this runner.

    A job goes from the feed to the supervisor, as a call; its answer becomes an outcome, which the ledger
    confirms once it has all that the job has yielded. Until then it is held, and its lease is renewed.

    Args:
        session: this runner's, with the ledger.
        direct_url: of the same database, past any pooling proxy.
        supervisor: who runs the jobs.
        functions: what it serves.
        metrics: where jobs are counted.
        requests: operators', which are heard of over the same connection.
        invoking: makes jobs for running calls; their ends are heard of likewise.
    """

    def __init__(
        self,
        session: Session,
        direct_url: str,
        supervisor: Supervisor,
        functions: Mapping[str, Function[Any, Any]],
        metrics: RunnerMetrics,
        requests: Requests,
        invoking: Ledger,
    ) -> None:
        interfaces = {name: function.manifest.interface for name, function in functions.items()}
        self._reporting = Reporting(session)
        self._finishing = Finishing(session, self._requeued)
        self._streaming = Streaming(session, supervisor, self._finishing.add)
        self._held = HeldJobs(
            supervisor,
            interfaces,
            metrics,
            self._streaming.end,
            self._reporting.add,
            self._streaming.add,
            [name for name, function in functions.items() if function.is_streaming],
        )
        claims = ClaimIds()
        self._leases = Leases(session, self._held, claims)
        self._feed = JobFeed(session, supervisor, interfaces, self._held, self._leases, claims, metrics)
        self._handovers = Handovers(session, supervisor, self._held, self._leases, claims, metrics)
        self._leases.on_guard = self._handovers.guard
        supervisor.on_handover = self._handovers.record
        self._lanes = {channel(name): name for name in interfaces}
        self._cancels = f"headrace_cancel_{session.session_id.replace('-', '')}"
        self._requests = requests
        self._ends = invoking.ends
        supervisor.invoking.callee = invoking
        self._asks = runner_requests.channel(session.session_id)
        self._listener = Listener(
            direct_url,
            [*self._lanes, self._cancels, self._asks, self._ends.channel],
            self._notified,
            self._connected,
            on_lost=self._disconnected,
            holds=session.session_id,
            application_name="headrace-runner-listen",
        )
        self._claiming: asyncio.Task[None] | None = None

    def start(self) -> list[asyncio.Task[None]]:
        """Begin; the tasks end only when they are cancelled, or fail."""
        self._claiming = asyncio.create_task(self._feed.run())
        works: list[Coroutine[Any, Any, None]] = [
            self._leases.renew_for_ever(),
            self._leases.guard(),
            self._finishing.run(self._held),
            self._reporting.run(),
            self._streaming.run(),
            self._handovers.run(),
            self._handovers.settling.run(),
            self._requests.run(),
            self._ends.run(),
            self._listener.run(),
        ]
        return [self._claiming, *map(asyncio.create_task, works)]

    def leases_until(self) -> list[float]:
        """Until which `boot_time` the lease of each running job is relied on."""
        return [job.lease_until for job in self._held.running()] + self._handovers.leases_until()

    # ------------------------------------------------------------------ what is heard

    def _notified(self, where: str, payload: str) -> None:
        if where == self._cancels:
            self._handovers.cancelled(payload)
            self._feed.cancelled(payload)
        elif where == self._asks:
            self._requests.look()
        elif where == self._ends.channel:
            self._ends.heard(payload)
        else:
            self._feed.heard(self._lanes[where])

    def _connected(self) -> None:
        """What was said before is lost."""
        self._feed.look()
        self._requests.look()
        self._leases.seen(True)
        self._ends.connected()

    def _disconnected(self) -> None:
        """Until the next connection nobody sees by the session's lock that this runner lives."""
        self._leases.seen(False)

    def _requeued(self) -> None:
        self._feed.look_for_due()

    # ------------------------------------------------------------------ the end

    async def stop_claiming(self, seconds: float) -> None:
        """Claim nothing more; a claim that is on its way is waited for, so many seconds."""
        if self._claiming is not None:
            self._feed.stop()
            await asyncio.wait({self._claiming}, timeout=seconds)

    async def give_back(self, step: Step) -> None:
        """Kill the jobs that still run and give them back, uncharged; record what has ended.

        Args:
            step: does each of these.
        """
        await step(self._handovers.flush())
        self._handovers.leave()
        for job in self._held.running():
            self._held.kill(job, "leaving")
        await step(self._held.all_ended())
        await step(self._handovers.flush())
        if jobs := self._held.running():
            log.warning("%d jobs didn't end", len(jobs))
        await step(self._streaming.flush())
        if count := self._streaming.count():
            log.warning("what %d jobs have yielded could not be recorded", count)
        await step(self._finishing.flush())
        if unsettled := self._handovers.settling.count():
            log.warning("it isn't known of %d answered calls whether they became jobs", unsettled)
        if count := count + self._finishing.count():
            log.warning("%d outcomes could not be recorded", count)
        else:
            await step(self._give_back_unknown())

    async def _give_back_unknown(self) -> None:
        """Nothing is held, so what the ledger thinks is held was lost on its way here."""
        try:
            await self._leases.renew()
        except DatabaseError as error:
            log.warning("the last renewal failed: %s", error)
