"""Jobs in each state, brought there by the ledger's commands alone."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from harness.ledger import Runner, elapse, make_owner, new_job, row
from headrace.database import Database
from headrace.domain import State
from headrace.ledger import cancelling, settling
from headrace.ledger.execution import Claimed
from headrace.ledger.submission import NewJob, submit

STATES: list[State] = [
    "queued",
    "running",
    "succeeded",
    "failed",
    "expired",
    "cancel_requested",
    "cancelled",
]


@dataclass
class Placed:
    """A job, and its start: the runner's own, or one that nobody has."""

    job: NewJob
    claimed: Claimed
    runner: Runner


async def placed(database: Database, state: State, **changes: Any) -> Placed:
    """A job in that state: 50 s after its submission for its first start, 100 s for its end."""
    owner = await make_owner(database)
    job = new_job(owner, **{"idempotency_key": "k", "queue_s": 50.0, "total_s": 100.0} | changes)
    await submit(database, [job])
    runner = Runner(database)
    nobodys = Claimed(
        job_id=job.job_id,
        token=str(uuid.uuid4()),
        attempt=1,
        charged=1,
        function=job.function,
        input=b"",
        owner_id=owner,
        remaining_s=1,
        waited_s=0,
        request_id="",
        traceparent="",
        alone=False,
    )
    made = Placed(job, nobodys, runner)
    if state == "expired":
        await elapse(database, 50)
        await settling.settle(database, "gateway:g")
    elif state == "cancelled":
        await cancelling.cancel(database, job.job_id, owner, "key:k")
    elif state != "queued":
        made.claimed = await runner.claim_one()
        if state == "cancel_requested":
            await cancelling.cancel(database, job.job_id, owner, "key:k")
        elif state != "running":
            await runner.end(made.claimed, "succeeded" if state == "succeeded" else "failed")
    assert (await row(database, job.job_id))["state"] == state
    return made


async def forget(database: Database) -> None:
    """Leave the ledger empty, but for owners and lanes."""
    for statement in ("procrastinate_jobs", "job", "job_event", "job_items", "idempotency"):
        await database.execute(f"DELETE FROM {statement}")


async def placed_again(database: Database) -> Placed:
    """A job that waits for another start: its runner's lease ran out."""
    made = await placed(database, "running")
    await elapse(database, 31)
    await settling.settle(database, "gateway:g")
    await elapse(database, 1)  # over the pause
    assert (await row(database, made.job.job_id))["state"] == "queued"
    return made
