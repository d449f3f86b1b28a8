"""Recording direct calls as jobs while they run: rows that are born `running`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from headrace.database import Database, queries, within
from headrace.domain import State

_SQL: Final = queries("handover")


class HandedOver(msgspec.Struct, frozen=True, kw_only=True):
    """A direct call that runs and shall be a job from now on, under the start that it has.

    Args:
        job_id: minted by the gateway that sent the call.
        token: a new UUID, minted by the runner for this start; the same one when it is sent again.
        owner_id: whose call it is.
        function: its name, which is its lane too.
        interface: the hash of the function's schemas.
        input: as JSON.
        digest: SHA-256 of the input as JSON with sorted keys.
        cost: of the input, by the function's declaration.
        attempts: how many charged starts it is allowed.
        attempt: the number of the start that runs, from 1.
        charged: how many starts are charged, this one included; at most `attempts`.
        waited_s: seconds from the call's acceptance to this start.
        elapsed_s: seconds since this start.
        remaining_s: seconds until the call's deadline.
        queue_s: seconds from its acceptance within which its first start had to come.
        key_id: of the API key that it came with; None where there is none.
        alone: an earlier start ended with its process, so nothing may run beside this one.
        weight: its share against other owners' jobs, should it have to wait again.
        request_id: for its log lines.
        traceparent: of its trace.
    """

    job_id: str
    token: str
    owner_id: str
    function: str
    interface: str
    input: bytes
    digest: bytes
    cost: float
    attempts: int
    attempt: int
    charged: int
    waited_s: float
    elapsed_s: float
    remaining_s: float
    queue_s: float
    key_id: str | None = None
    alone: bool = False
    weight: float = 1.0
    request_id: str = ""
    traceparent: str = ""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """How a call stands in the ledger.

    Args:
        verdict: `committed`: the job has the call's token, so its runner holds it, or has ended it.
            `fenced`: a job of that id is there without that token, so what runs isn't to be recorded.
        state: the job's, at this moment. Of a `committed` one, anything but `running` and
            `cancel_requested` says that this start is over as far as the ledger knows.
        created_at: when the call was accepted.
    """

    job_id: str
    verdict: Literal["committed", "fenced"]
    state: State
    created_at: datetime
    queue_deadline_at: datetime
    deadline_at: datetime


async def hand_over(
    database: Database, *, session_id: str, claim_id: str, lease_s: float, calls: Sequence[HandedOver]
) -> dict[str, Recorded]:
    """Record calls as running jobs, in one transaction; no bound refuses one.

    Sent again, as its reply was lost, it records what isn't there yet, and renews the leases of what is.

    Args:
        database: an open one.
        session_id: the runner's.
        claim_id: of this transaction, to be named in renewals until this returns or nothing can come of it.
        lease_s: how long the jobs are the runner's without a renewal, from the moment of sending.
        calls: each with an id of its own.

    Returns:
        How each stands, by its id.

    Raises:
        DatabaseBusy: a lock wasn't to be had within two seconds. Nothing took effect; each of several
            may fare better alone.
        DatabaseUnavailable: it isn't known whether it took effect; nor is it known yet whether it will.
    """
    rows = await database.fetch(
        _SQL["hand_over"],
        {
            "session_id": session_id,
            "claim_id": claim_id,
            "ids": [call.job_id for call in calls],
            "tokens": [call.token for call in calls],
            "owner_ids": [call.owner_id for call in calls],
            "key_ids": [call.key_id for call in calls],
            "functions": [call.function for call in calls],
            "interfaces": [call.interface for call in calls],
            "inputs": [call.input for call in calls],
            "digests": [call.digest for call in calls],
            "costs": [float(call.cost) for call in calls],
            "weights": [float(call.weight) for call in calls],
            "attempts": [call.attempts for call in calls],
            "attempt": [call.attempt for call in calls],
            "charged": [call.charged for call in calls],
            "alone": [call.alone for call in calls],
            "waited_s": [float(call.waited_s) for call in calls],
            "elapsed_s": [float(call.elapsed_s) for call in calls],
            "remaining_s": [float(call.remaining_s) for call in calls],
            "queue_s": [float(call.queue_s) for call in calls],
            "request_ids": [call.request_id for call in calls],
            "traceparents": [call.traceparent for call in calls],
            "lease_s": lease_s,
        },
        within=within(sum(len(call.input) for call in calls)),
    )
    return {record.job_id: record for record in msgspec.convert(rows, list[Recorded])}
