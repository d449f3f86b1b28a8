"""A runner without processes: claims jobs and ends them by the ledger's commands, when a test says so."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from headrace import registry
from headrace.database import Database
from headrace.domain import Manifest, RunnerInfo, State
from headrace.ledger import execution, handover, items
from headrace.ledger.execution import Claimed, Kind, Lane, Outcome, Renewal, Report
from headrace.ledger.handover import HandedOver
from headrace.ledger.items import Group

T = TypeVar("T")

LEASE_S = 60.0


class LedgerRunner:
    """Serves jobs only; no gateway dials it.

    Args:
        database_url: the site's.
        manifests: the functions that it says it serves.
    """

    def __init__(self, database_url: str, manifests: Sequence[Manifest]) -> None:
        self.runner_id = str(uuid.uuid4())
        self._url = database_url
        self._manifests = list(manifests)

    def register(self) -> None:
        """Make it and its functions known; again and again, as a runner that is silent for 10 s has left."""
        interfaces = {manifest.name: manifest.interface for manifest in self._manifests}
        info = RunnerInfo(self.runner_id, None, "default", interfaces)
        self._run(lambda database: registry.register(database, info, self._manifests))

    def leave(self) -> None:
        """As a runner that is stopped does."""
        self._run(lambda database: registry.unregister(database, self.runner_id))

    def claim(self, function: str, most: int = 1) -> list[Claimed]:
        """Take what waits."""
        lanes = [Lane(one.name, one.interface, 0) for one in self._manifests if one.name == function]
        assert lanes
        return self._run(
            lambda database: execution.claim(
                database,
                session_id=self.runner_id,
                claim_id=str(uuid.uuid4()),
                lanes=lanes,
                free=[most],
                lease_s=LEASE_S,
            )
        )

    def claim_one(self, function: str) -> Claimed:
        """Take the one job that must wait."""
        (job,) = self.claim(function)
        return job

    def end(self, job: Claimed, kind: Kind = "succeeded", **more: Any) -> State | None:
        """Record how a start ended; the job's state afterwards, None where it isn't the runner's any more."""
        if kind == "succeeded":
            more.setdefault("output", b'{"done": true}')
        outcome = Outcome(job_id=job.job_id, token=job.token, attempt=job.attempt, kind=kind, **more)
        states = self._run(
            lambda database: execution.finish(
                database, session_id=self.runner_id, outcomes=[outcome], result_ttl_s=3600
            )
        )
        return states.get(job.job_id)

    def progress(self, job: Claimed, fraction: float, message: str = "") -> None:
        """Say how far a job is."""
        report = Report(job.job_id, job.token, job.attempt, fraction, message)
        self._run(lambda database: execution.progress(database, [report]))

    def add_items(self, job: Claimed, before: int, *given: bytes) -> None:
        """Write what a job has yielded behind so many items."""
        group = Group(job.job_id, job.token, job.attempt, before, given)
        assert self._run(lambda database: items.add(database, [group])) == {job.job_id: "written"}

    def hand_over(self, call: HandedOver) -> None:
        """Make a direct call a job that this runner holds."""
        records = self._run(
            lambda database: handover.hand_over(
                database,
                session_id=self.runner_id,
                claim_id=str(uuid.uuid4()),
                lease_s=LEASE_S,
                calls=[call],
            )
        )
        assert records[call.job_id].verdict == "committed"

    def renew(self, *held: Claimed) -> Renewal:
        """Renew the leases of all that it holds."""
        return self._run(
            lambda database: execution.renew(
                database,
                session_id=self.runner_id,
                held=[execution.Held(job.job_id, job.token, job.attempt) for job in held],
                claiming=[],
                lease_s=LEASE_S,
            )
        )

    def _run(self, command: Callable[[Database], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with await Database.open(self._url, application_name="test") as database:
                return await command(database)

        return asyncio.run(connected())
