"""The ledger's commands in one line each, and time that passes when a test says so."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any

import msgspec

from headrace.database import Database, Row
from headrace.domain import FINAL, State
from headrace.ids import uuid7
from headrace.ledger import execution, handover, items, reading, submission
from headrace.ledger.execution import Claimed, Held, Kind, Lane, Outcome, Renewal
from headrace.ledger.handover import HandedOver, Recorded
from headrace.ledger.items import Group, Verdict
from headrace.ledger.submission import NewJob

LANE = "fish"
INTERFACE = "i1"
OFTEN_RETRIED = {"attempt": 5, "charged": 5, "attempts": 9}
"""Of a new job: its next retry waits for 8 seconds at least and 24 at most."""

_NEW_OWNER = "INSERT INTO owner (name) VALUES (%s) RETURNING id::text AS id"
_ROW = (
    "SELECT j.*, id::text AS id, token::text AS token, session_id::text AS session_id,"
    " owner_id::text AS owner_id FROM job j WHERE id = %s::uuid"
)
_TIMES = (
    "UPDATE job SET created_at = created_at - i, queue_deadline_at = queue_deadline_at - i,"
    " deadline_at = deadline_at - i, queued_at = queued_at - i, due_at = due_at - i,"
    " first_started_at = first_started_at - i, started_at = started_at - i, finished_at = finished_at - i,"
    " settle_at = settle_at - i, lease_expires_at = lease_expires_at - i,"
    " result_expires_at = result_expires_at - i FROM make_interval(secs => %(seconds)s) AS i"
    " WHERE %(job_id)s::uuid IS NULL OR id = %(job_id)s::uuid",
    "UPDATE procrastinate_jobs SET scheduled_at = scheduled_at - make_interval(secs => %(seconds)s)"
    " WHERE %(job_id)s::text IS NULL OR args ->> 'job_id' = %(job_id)s::text",
    "UPDATE idempotency SET expires_at = expires_at - make_interval(secs => %(seconds)s)"
    " WHERE %(job_id)s::uuid IS NULL OR job_id = %(job_id)s::uuid",
)
_QUEUE = (
    "SELECT e.id, e.queue_name, e.task_name, e.status::text AS status, e.lock, e.queueing_lock, e.args,"
    " e.scheduled_at FROM procrastinate_jobs e ORDER BY e.id"
)
_STANDING = (
    "SELECT id::text AS id, state, attempt, charged, attempts, token::text AS token, sequence, result,"
    " result_place, result_expires_at, error_category, finished_at, owner_id::text AS owner_id, function,"
    " idempotency_key, retry_of::text AS retry_of, retried_as::text AS retried_as, session_id, tag, due_at,"
    " settle_at, cost, weight, alone, batch_id::text AS batch_id, clock_timestamp() AS now,"
    " (SELECT count(*) FROM procrastinate_jobs e WHERE e.id = j.entry_id AND e.status = 'todo'"
    " AND e.queue_name = j.function AND e.args = jsonb_build_object('job_id', j.id, 'v', 1)"
    " AND (e.scheduled_at = j.due_at"
    " OR j.due_at IS NULL AND coalesce(e.scheduled_at <= clock_timestamp(), true))) AS entries"
    " FROM job j ORDER BY id"
)
_BLOCKED = (
    "SELECT count(*) AS blocked FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
_ASLEEP = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
_EVENTS = (
    "SELECT job_id::text AS job_id, sequence, from_state, state, attempt, reason FROM job_event ORDER BY 1, 2"
)
_ITEMS = (
    "SELECT job_id::text AS job_id, sequence, attempt, number, cardinality(items) AS count, bytes, items"
    " FROM job_items ORDER BY 1, 2"
)
_WITH_ITS_PROCESS = (
    "its process was lost",
    "its process was killed for another call",
    "lost with its process on the direct path",
    "handed over, running alone",
)
"""Of events: a start ended with its process, while its runner lived to tell."""


@asynccontextmanager
async def opened(url: str, connections: int = 4) -> AsyncGenerator[Database]:
    """The database of a URL, closed afterwards."""
    async with await Database.open(url, application_name="headrace-test", max_size=connections) as database:
        yield database


async def make_owner(database: Database) -> str:
    return (await database.fetch(_NEW_OWNER, [uuid.uuid4().hex]))[0]["id"]


def new_job(owner_id: str, **changes: Any) -> NewJob:
    """A job of the lane `fish`; its digest is of its input unless one is given."""
    made = NewJob(
        job_id=uuid7(),
        owner_id=owner_id,
        function=LANE,
        interface=INTERFACE,
        input=b"{}",
        digest=b"",
        cost=1.0,
        attempts=2,
        queue_s=60.0,
        total_s=600.0,
        most_outstanding=10_000,
        most_waiting=10_000,
    )
    made = msgspec.structs.replace(made, **changes)
    return msgspec.structs.replace(made, digest=made.digest or hashlib.sha256(made.input).digest())


def new_call(owner_id: str, **changes: Any) -> HandedOver:
    """A direct call of the lane `fish` that began to wait 3 s ago and to run 2 s ago."""
    made = HandedOver(
        job_id=uuid7(),
        token=str(uuid.uuid4()),
        owner_id=owner_id,
        function=LANE,
        interface=INTERFACE,
        input=b"{}",
        digest=b"",
        cost=1.0,
        attempts=2,
        attempt=1,
        charged=1,
        waited_s=1.0,
        elapsed_s=2.0,
        remaining_s=600.0,
        queue_s=60.0,
    )
    made = msgspec.structs.replace(made, **changes)
    return msgspec.structs.replace(made, digest=made.digest or hashlib.sha256(made.input).digest())


def submission_of(call: HandedOver, **changes: Any) -> NewJob:
    """The same call as a gateway submits it that has lost its link to the runner."""
    had = {"attempt": call.attempt, "charged": call.charged, "attempts": call.attempts, "weight": call.weight}
    return new_job(
        call.owner_id, job_id=call.job_id, function=call.function, input=call.input, **had | changes
    )


def start_of(call: HandedOver) -> Claimed:
    """The start of a call that was handed over, as that of a claimed job."""
    return Claimed(
        job_id=call.job_id,
        token=call.token,
        attempt=call.attempt,
        charged=call.charged,
        function=call.function,
        input=call.input,
        owner_id=call.owner_id,
        remaining_s=call.remaining_s,
        waited_s=call.waited_s,
        request_id=call.request_id,
        traceparent=call.traceparent,
        alone=call.alone,
    )


async def submit_one(database: Database, owner_id: str, **changes: Any) -> str:
    """The id of a job that was just accepted."""
    return (await submit_many(database, owner_id, 1, **changes))[0]


async def submit_many(database: Database, owner_id: str, count: int, **changes: Any) -> list[str]:
    """The ids of jobs that were just accepted, in one batch."""
    receipts = await submission.submit(database, [new_job(owner_id, **changes) for _ in range(count)])
    assert {receipt.outcome for receipt in receipts} == {"accepted"}
    return [receipt.job_id for receipt in receipts]


class Runner:
    """Claims and finishes, by the ledger's commands alone."""

    def __init__(self, database: Database, *, lease_s: float = 30.0) -> None:
        self.session_id = str(uuid.uuid4())
        self.actor = f"runner:{self.session_id}"
        self._database = database
        self._lease_s = lease_s

    def on(self, database: Database) -> Runner:
        """The same runner over another connection."""
        same = copy(self)
        same._database = database
        return same

    async def claim(
        self,
        most: int = 1,
        *,
        function: str = LANE,
        interface: str = INTERFACE,
        claim_id: str | None = None,
        alone: int = 1,
    ) -> list[Claimed]:
        return await self.claim_lanes([Lane(function, interface, 0)], [most], claim_id, alone)

    async def claim_lanes(
        self, lanes: Sequence[Lane], free: Sequence[int], claim_id: str | None = None, alone: int = 1
    ) -> list[Claimed]:
        return await execution.claim(
            self._database,
            session_id=self.session_id,
            claim_id=claim_id or str(uuid.uuid4()),
            lanes=lanes,
            free=free,
            lease_s=self._lease_s,
            alone=alone,
        )

    async def claim_one(self, *, function: str = LANE) -> Claimed:
        """The one job that must wait."""
        (job,) = await self.claim(function=function)
        return job

    async def finish(self, *outcomes: Outcome, result_ttl_s: float = 3600.0) -> dict[str, State]:
        return await execution.finish(
            self._database, session_id=self.session_id, outcomes=outcomes, result_ttl_s=result_ttl_s
        )

    async def end(self, job: Claimed, kind: Kind = "succeeded", **more: Any) -> State | None:
        """The job's state afterwards; None where it isn't the runner's any more."""
        return (await self.finish(outcome(job, kind, **more))).get(job.job_id)

    async def add_items(self, job: Claimed, before: int, *given: bytes) -> Verdict:
        """Write what one job has yielded."""
        group = Group(job.job_id, job.token, job.attempt, before, given)
        return (await items.add(self._database, [group]))[job.job_id]

    async def hand_over(self, *calls: HandedOver, claim_id: str | None = None) -> dict[str, Recorded]:
        return await handover.hand_over(
            self._database,
            session_id=self.session_id,
            claim_id=claim_id or str(uuid.uuid4()),
            lease_s=self._lease_s,
            calls=calls,
        )

    async def renew(self, *held: Claimed | Held, claiming: Sequence[str] = ()) -> Renewal:
        return await execution.renew(
            self._database,
            session_id=self.session_id,
            held=[Held(job.job_id, job.token, job.attempt) for job in held],
            claiming=claiming,
            lease_s=self._lease_s,
        )


async def started(database: Database, runner: Runner, **changes: Any) -> Claimed:
    """A new job's first start."""
    await submit_one(database, await make_owner(database), **changes)
    return await runner.claim_one()


def outcome(job: Claimed, kind: Kind = "succeeded", **more: Any) -> Outcome:
    """How a start ended, with what its kind needs."""
    made = Outcome(job_id=job.job_id, token=job.token, attempt=job.attempt, kind=kind)
    given = {"output": b'"done"'} if kind == "succeeded" else {"category": "broken", "message": "It broke."}
    return msgspec.structs.replace(made, **given | more)


async def elapse(database: Database, seconds: float, job_id: str | None = None) -> None:
    """Let so much time pass for one job, or for all."""
    for statement in _TIMES:
        await database.execute(statement, {"seconds": seconds, "job_id": job_id})


async def until_blocked(database: Database, count: int) -> None:
    """Until so many statements wait for a lock."""
    async with asyncio.timeout(10):
        while (await database.fetch(_BLOCKED))[0]["blocked"] < count:
            await asyncio.sleep(0.01)


async def until_asleep(database: Database) -> None:
    """Until a statement is in `pg_sleep`: it holds whatever it has locked before."""
    async with asyncio.timeout(10):
        while not await database.fetch(_ASLEEP):
            await asyncio.sleep(0.01)


async def row(database: Database, job_id: str) -> Row:
    """All that the ledger has of a job."""
    return (await database.fetch(_ROW, [job_id]))[0]


async def state(database: Database, job_id: str) -> State:
    return (await reading.standings(database, [job_id]))[job_id][0]


async def queue(database: Database) -> list[Row]:
    """Procrastinate's entries."""
    return await database.fetch(_QUEUE)


async def story(database: Database, job_id: str) -> list[tuple[State, int, str, str]]:
    """A job's events: state, attempt, actor, reason."""
    return [
        (event.state, event.attempt, event.actor, event.reason)
        for event in await reading.events(database, job_id)
    ]


async def standing(database: Database) -> dict[str, Row]:
    """How each job stands, by id."""
    return {job["id"]: job for job in await database.fetch(_STANDING)}


async def check_ledger(database: Database) -> dict[str, Row]:
    """Check what holds of every ledger at every moment; returns its jobs by id.

    Raises:
        AssertionError: an entry without a waiting job or the other way round, a job with too many starts,
            events that don't lead to where their job stands, a job that may run beside others although
            its last start ended with its process, or items that aren't one attempt's from its first on.
    """
    jobs = await standing(database)
    events: dict[str, list[Row]] = {job_id: [] for job_id in jobs}
    for event in await database.fetch(_EVENTS):
        events[event["job_id"]].append(event)
    kept: dict[str, list[Row]] = {}
    for group in await database.fetch(_ITEMS):
        kept.setdefault(group["job_id"], []).append(group)
    for job_id, job in jobs.items():
        told = [(event["from_state"], event["state"], event["attempt"]) for event in events[job_id]]
        what = f"{job}: {told}"
        assert job["entries"] == (job["state"] == "queued"), what
        assert 0 <= job["charged"] <= job["attempts"], what
        assert 0 <= job["attempt"] - job["charged"] <= 3, what
        assert [before for before, _, _ in told] == [None, *(after for _, after, _ in told[:-1])], what
        assert not FINAL & {before for before, _, _ in told}, what
        assert told[-1][1:] == (job["state"], job["attempt"]), what
        assert (job["result_place"] is not None) == (job["state"] == "succeeded"), what
        numbers = [event["sequence"] for event in events[job_id]]
        assert numbers == sorted(set(numbers)), what
        assert numbers[-1] <= job["sequence"], what
        starts = [attempt for _, after, attempt in told if after == "running"]
        assert starts == list(range(job["attempt"] - len(starts) + 1, job["attempt"] + 1)), what
        assert job["alone"] == _is_alone(events[job_id]), f"{what}, {events[job_id]}"
        check_items(job, [event["sequence"] for event in events[job_id]], kept.pop(job_id, []))
    assert not kept, "items of jobs that are gone"
    waiting = sum(job["state"] == "queued" for job in jobs.values())
    assert sum(entry["task_name"] == "headrace.run" for entry in await queue(database)) == waiting
    return jobs


def check_items(job: Row, events: Sequence[int], groups: Sequence[Row]) -> None:
    """Check a job's items against its events: one attempt's, without a gap, each under its own number."""
    what = f"{job}: {groups}"
    numbers = list(events)
    known = 0
    for group in groups:
        assert group["attempt"] == groups[0]["attempt"] <= job["attempt"], what
        known += group["count"]
        assert group["number"] == known, what
        assert group["bytes"] == sum(map(len, group["items"])), what
        numbers += range(group["sequence"] - group["count"] + 1, group["sequence"] + 1)
    assert len(set(numbers)) == len(numbers), what
    assert max(numbers) <= job["sequence"], what
    assert job["result_place"] != "gone" or not groups, what


def _is_alone(events: Sequence[Row]) -> bool:
    """Whether nothing may run beside a job, as its events tell."""
    alone = False
    for event in events:
        if event["from_state"] is None or event["state"] == "queued":
            alone = alone_after(event["reason"], alone)
    return alone


def alone_after(reason: str, was_alone: bool) -> bool:
    """Whether nothing may run beside the next start of a job that waits for that reason."""
    if reason == "the execution failed for now":
        return False  # its process lived to tell
    return was_alone or reason in _WITH_ITS_PROCESS
