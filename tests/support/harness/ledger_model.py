"""What owners and runners have been told by a ledger, and what must hold of it at every moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any, NamedTuple, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from harness.ledger import Runner, check_ledger, make_owner, standing
from headrace.database import Database, Row
from headrace.domain import FINAL, State
from headrace.ledger.execution import Claimed
from headrace.ledger.handover import HandedOver
from headrace.ledger.submission import NewJob, Receipt

T = TypeVar("T")

LANES = ("a", "b")
KEY_TTL_S = 600.0
RESULT_TTL_S = 100.0
ACCURACY_S = 100.0
"""How much of the time that a test lets pass may be the test's own."""

_EMPTY = (
    "TRUNCATE job, job_event, job_items, batch, idempotency, lane, lane_owner, owner_load, audit,"
    " procrastinate_jobs, usage_expired, usage_minute, usage_changed CASCADE"
)
_EXPIRED = (
    "SELECT function, sum(number)::bigint AS number FROM (SELECT function, number FROM usage_expired"
    " UNION ALL SELECT function, number FROM usage_minute WHERE kind = 'expired') AS e GROUP BY function"
)
_KEYS = "SELECT owner_id::text AS owner_id, function, key, job_id::text AS job_id FROM idempotency"
_FLOWS = "SELECT lane, owner_id::text AS owner_id, weight, last_tag FROM lane_owner"
_LANES = "SELECT name, virtual_time FROM lane"


class Key(NamedTuple):
    """An idempotency key of an owner for a function."""

    owner_id: str
    function: str
    key: str


class Flow(NamedTuple):
    """An owner's jobs of one weight in a lane."""

    lane: str
    owner_id: str
    weight: float


class Model(RuleBasedStateMachine):
    """Two owners, two runners, and the ledger that they use."""

    loop: asyncio.AbstractEventLoop
    database: Database
    admissions: Database

    def __init__(self) -> None:
        super().__init__()
        self.do(self.database.execute(_EMPTY))
        self.owners = [self.do(make_owner(self.database)) for _ in range(2)]
        self.runners = [Runner(self.database), Runner(self.database)]
        self.offered: dict[str, NewJob] = {}
        self.accepted: dict[str, int] = {}
        """Jobs, with the starts that they had had before."""
        self.batches: list[str] = []
        self.answers: list[tuple[NewJob, Receipt]] = []
        self.handed: list[tuple[HandedOver, int]] = []
        self.claims: list[tuple[Claimed, int]] = []
        self.held: list[dict[str, Claimed]] = [{}, {}]
        self.in_flight: list[set[str]] = [set(), set()]
        self.ends: list[tuple[Claimed, State]] = []
        self.again: dict[str, str] = {}
        """The job that does another one again, by that one."""
        self.keys: dict[Key, str] = {}
        self.ages: dict[Key, float] = {}
        self.final: dict[str, Row] = {}
        self.forgotten: set[str] = set()
        self.virtual: dict[str, float] = {}
        self.ends_of_flows: dict[Flow, float] = {}
        self.places: dict[str, tuple[str, float]] = {}
        """The lane and the tag of each job."""
        self.was_alone = True
        self.reserved_in_vain = 0.0
        """By submissions since the last look whose calls were handed over at that moment."""

    def do(self, command: Awaitable[T]) -> T:
        return self.loop.run_until_complete(command)

    async def jobs(self) -> dict[str, Row]:
        return await standing(self.database)

    async def flows(self) -> dict[Flow, float]:
        """Where the last job of each flow ends, in its lane's time."""
        rows = await self.database.fetch(_FLOWS)
        return {Flow(row["lane"], row["owner_id"], row["weight"]): row["last_tag"] for row in rows}

    # ---------------------------------------------------------------- what was answered

    def learn(self, *, alone: bool) -> None:
        """Take in what has been answered since, in whatever order the commands came."""
        self.was_alone = alone
        self.answers.sort(key=lambda answer: answer[1].outcome != "accepted")
        for job, receipt in self.answers:
            match receipt.outcome:
                case "accepted":
                    self.was_accepted(job, receipt)
                case "replayed":
                    self.was_replayed(job, receipt)
                case "key-conflict":
                    assert receipt.job_id in self.accepted
                    assert receipt.state is None
                case outcome:
                    assert outcome in {"backlog-full", "not-retryable"}
                    assert job.job_id not in self.accepted
        self.answers.clear()

    def was_accepted(self, job: NewJob, receipt: Receipt) -> None:
        assert receipt.job_id == job.job_id
        assert receipt.state == "queued"
        assert job.job_id not in self.accepted
        self.accepted[job.job_id] = job.attempt
        if job.retry_of is not None:
            assert job.retry_of not in self.again
            self.again[job.retry_of] = job.job_id
        elif job.idempotency_key is not None:
            key = Key(job.owner_id, job.function, job.idempotency_key)
            assert key not in self.keys or self.ages[key] > KEY_TTL_S - ACCURACY_S
            self.keys[key] = job.job_id
            self.ages[key] = 0.0

    def was_replayed(self, job: NewJob, receipt: Receipt) -> None:
        assert receipt.job_id in self.accepted
        if receipt.job_id == job.job_id:
            return
        if job.retry_of is not None:
            assert receipt.job_id == self.again[job.retry_of]
        else:
            assert job.idempotency_key is not None
            key = Key(job.owner_id, job.function, job.idempotency_key)
            assert receipt.job_id == self.keys[key]
            assert self.offered[receipt.job_id].digest == job.digest

    def time_passed(self, seconds: float, job_id: str | None = None) -> None:
        for key, stands_for in self.keys.items():
            if job_id in {None, stands_for}:
                self.ages[key] += seconds

    # ---------------------------------------------------------------- what always holds

    @invariant()
    def holds(self) -> None:
        jobs = self.do(check_ledger(self.database))
        assert jobs.keys() | self.forgotten == self.accepted.keys()
        assert not jobs.keys() & self.forgotten
        self.final_jobs_stay(jobs)
        self.starts_are_counted(jobs)
        self.what_was_answered_is_so(jobs)
        self.retries_agree(jobs)
        self.keys_stand_for_one_job(jobs)
        self.time_in_lanes_goes_on(jobs)
        self.expired_jobs_count_once()

    def expired_jobs_count_once(self) -> None:
        expired = Counter(row["function"] for row in self.final.values() if row["state"] == "expired")
        counted = {row["function"]: row["number"] for row in self.do(self.database.fetch(_EXPIRED))}
        assert counted == expired

    def final_jobs_stay(self, jobs: dict[str, Row]) -> None:
        for job_id, row in jobs.items():
            before = self.final.get(job_id)
            if before is not None:
                for name in ("state", "attempt", "charged", "token", "sequence", "alone", "error_category"):
                    assert row[name] == before[name], name
                assert row["result"] in (before["result"], None)
                assert (row["result"] is None) == (row["result_place"] != "row")
                assert before["retried_as"] in (row["retried_as"], None)
            if row["state"] in FINAL:
                self.final[job_id] = row

    def starts_are_counted(self, jobs: dict[str, Row]) -> None:
        tokens = [start.token for start, _ in self.claims]
        assert len(set(tokens)) == len(tokens)
        by_attempt = {(start.job_id, start.attempt): start.token for start, _ in self.claims}
        assert len(by_attempt) == len(self.claims)
        for job_id, row in jobs.items():
            starts = sum(start.job_id == job_id for start, _ in self.claims)
            assert starts == row["attempt"] - self.accepted[job_id] <= row["attempts"] + 3
            if row["token"] is not None:
                assert row["token"] == by_attempt[job_id, row["attempt"]]
            if row["result"] is not None:
                assert row["result"] == output(row["token"])

    def what_was_answered_is_so(self, jobs: dict[str, Row]) -> None:
        for start, state in self.ends:
            row = jobs.get(start.job_id)
            if row is not None and state in FINAL:
                assert (row["state"], row["token"], row["attempt"]) == (state, start.token, start.attempt)

    def retries_agree(self, jobs: dict[str, Row]) -> None:
        retries = {row["retry_of"]: job_id for job_id, row in jobs.items() if row["retry_of"] is not None}
        assert retries.items() <= self.again.items()
        for job_id, row in jobs.items():
            assert row["retried_as"] == self.again.get(job_id)

    def keys_stand_for_one_job(self, jobs: dict[str, Row]) -> None:
        kept = {
            Key(row["owner_id"], row["function"], row["key"]): row["job_id"]
            for row in self.do(self.database.fetch(_KEYS))
        }
        assert kept.items() <= self.keys.items()
        for key, job_id in self.keys.items():
            assert key in kept or self.ages[key] > KEY_TTL_S - ACCURACY_S
            if key in kept and job_id in jobs:
                assert (jobs[job_id]["owner_id"], jobs[job_id]["idempotency_key"]) == (key.owner_id, key.key)

    def time_in_lanes_goes_on(self, jobs: dict[str, Row]) -> None:
        now = {row["name"]: row["virtual_time"] for row in self.do(self.database.fetch(_LANES))}
        for lane, before in self.virtual.items():
            assert now[lane] >= before
        ends = self.do(self.flows())
        placed: dict[Flow, list[Row]] = {}
        for job_id, row in jobs.items():
            if self.places.get(job_id) != (row["function"], row["tag"]):
                placed.setdefault(Flow(row["function"], row["owner_id"], row["weight"]), []).append(row)
        for flow in placed | self.ends_of_flows | ends:
            self.tags_follow_on(flow, placed, now.get(flow.lane, 0.0), ends.get(flow))
        self.virtual = now
        self.reserved_in_vain = 0.0
        self.ends_of_flows = ends
        self.places = {job_id: (row["function"], row["tag"]) for job_id, row in jobs.items()}

    def tags_follow_on(
        self, flow: Flow, placed: dict[Flow, list[Row]], now: float, now_ends: float | None
    ) -> None:
        """Nobody waits behind more than the own jobs: each tag of a flow is where the job before it ends, or
        its lane's time when it came, if that is later.

        Args:
            flow: which.
            placed: what has come into each flow since the last command.
            now: the lane's time.
            now_ends: where the flow's last job ends; None for a flow that is forgotten.
        """
        gap = self.reserved_in_vain
        if not self.was_alone:  # what came into this lane may have been moved to the other one at once
            others = (flow._replace(lane=lane) for lane in LANES if lane != flow.lane)
            gap += sum(step(row) for other in others for row in placed.get(other, []))
        ends = self.ends_of_flows.get(flow, 0.0)
        earliest = max(ends, self.virtual.get(flow.lane, 0.0))
        for row in sorted(placed.get(flow, []), key=lambda row: row["tag"]):
            assert earliest <= row["tag"] <= max(earliest, now) + gap
            earliest = ends = row["tag"] + step(row)
        if now_ends is None:
            assert ends <= now
        else:
            # A handover makes a flow begin where its lane is, if it has ended before.
            assert ends <= now_ends <= max(ends, now) + gap


def step(row: Row) -> float:
    """How far its job takes a flow on."""
    return max(row["cost"], 1.0) / row["weight"]


def output(token: str) -> bytes:
    """What a start computes: no two do the same."""
    return f'"{token}"'.encode()


def chosen(known: list[Any], places: list[int]) -> list[Any]:
    """Those at these places, one of each job."""
    found = [known[place % len(known)] for place in places if known]
    return list({one.job_id: one for one in found}.values())
