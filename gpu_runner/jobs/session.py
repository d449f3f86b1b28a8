"""What this runner asks of the ledger, in its own name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.database import Database
from headrace.domain import State
from headrace.ledger import execution, handover, items
from headrace.ledger.execution import Claimed, Held, Lane, Outcome, Renewal, Report
from headrace.ledger.handover import HandedOver, Recorded
from headrace.ledger.items import Group, Verdict


class Ledger(Protocol):
    """The ledger, as far as one runner is concerned. All raise `DatabaseError`."""

    @property
    def lease_s(self) -> float:
        """How long a lease is."""
        ...

    async def claim(
        self, claim_id: str, lanes: Sequence[Lane], free: Sequence[int], alone: int
    ) -> list[Claimed]:
        """Take jobs that wait, at most as many as there are free slots of each group.

        Args:
            claim_id: of this claim.
            lanes: looked at in this order.
            free: slots by group.
            alone: how many of the jobs may be such as run alone: 0 or 1.
        """
        ...

    async def next_due(self, functions: Sequence[str]) -> float | None:
        """Seconds until the first job that waits for its retry may start."""
        ...

    async def renew(self, held: Sequence[Held], claiming: Sequence[str]) -> Renewal:
        """Renew all leases, by the complete list."""
        ...

    async def finish(self, outcomes: Sequence[Outcome]) -> dict[str, State]:
        """Record how starts ended."""
        ...

    async def progress(self, reports: Sequence[Report]) -> None:
        """Note how far jobs are."""
        ...

    async def add_items(self, groups: Sequence[Group]) -> dict[str, Verdict]:
        """Write what jobs have yielded."""
        ...

    async def hand_over(self, claim_id: str, calls: Sequence[HandedOver]) -> dict[str, Recorded]:
        """Record direct calls that run as jobs that this runner holds; how each stands, by its id.

        Args:
            claim_id: of this transaction, as of a claim.
            calls: each with an id of its own.
        """
        ...


class Session:
    """The ledger in Postgres.

    Args:
        database: an open one.
        session_id: the runner's id.
        lease_s: how long a silent runner keeps its jobs.
        result_ttl_s: how long results are kept.
    """

    def __init__(self, database: Database, session_id: str, lease_s: float, result_ttl_s: float) -> None:
        self.session_id = session_id
        self.lease_s = lease_s
        self._database = database
        self._result_ttl_s = result_ttl_s

    async def claim(
        self, claim_id: str, lanes: Sequence[Lane], free: Sequence[int], alone: int
    ) -> list[Claimed]:
        """Take jobs that wait, at most as many as there are free slots of each group."""
        return await execution.claim(
            self._database,
            session_id=self.session_id,
            claim_id=claim_id,
            lanes=lanes,
            free=free,
            lease_s=self.lease_s,
            alone=alone,
        )

    async def next_due(self, functions: Sequence[str]) -> float | None:
        """Seconds until the first job that waits for its retry may start."""
        return await execution.next_due(self._database, functions)

    async def renew(self, held: Sequence[Held], claiming: Sequence[str]) -> Renewal:
        """Renew all leases, by the complete list."""
        return await execution.renew(
            self._database, session_id=self.session_id, held=held, claiming=claiming, lease_s=self.lease_s
        )

    async def finish(self, outcomes: Sequence[Outcome]) -> dict[str, State]:
        """Record how starts ended."""
        return await execution.finish(
            self._database, session_id=self.session_id, outcomes=outcomes, result_ttl_s=self._result_ttl_s
        )

    async def progress(self, reports: Sequence[Report]) -> None:
        """Note how far jobs are."""
        await execution.progress(self._database, reports)

    async def add_items(self, groups: Sequence[Group]) -> dict[str, Verdict]:
        """Write what jobs have yielded."""
        return await items.add(self._database, groups)

    async def hand_over(self, claim_id: str, calls: Sequence[HandedOver]) -> dict[str, Recorded]:
        """Record direct calls that run as jobs that this runner holds; how each stands, by its id."""
        return await handover.hand_over(
            self._database,
            session_id=self.session_id,
            claim_id=claim_id,
            lease_s=self.lease_s,
            calls=calls,
        )
