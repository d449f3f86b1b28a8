"""The ledger's commands as steps of a state machine: one at a time, or two at once on two connections."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from harness.ledger import INTERFACE, elapse, new_job, outcome
from harness.ledger_handovers import Handovers
from harness.ledger_model import KEY_TTL_S, LANES, RESULT_TTL_S, chosen, output
from headrace.database import Row
from headrace.domain import FINAL
from headrace.ids import uuid7
from headrace.ledger import batches, cancelling, execution, items, reading, retention, settling
from headrace.ledger.batches import NewBatch, Part
from headrace.ledger.execution import Kind, Lane, Report
from headrace.ledger.items import Group
from headrace.ledger.submission import NewJob, submit
from headrace.usage import storing

KINDS: list[Kind] = ["succeeded", "succeeded", "failed", "retry", "lost", "displaced", "returned"]
FORGET_AFTER_S = 30.0

# Strategies know nothing of the ledger, which moves with the clock: they would differ from run to run.
either = st.integers(0, 1)
place = st.integers(0, 99)
places = st.lists(place, max_size=3)
any_lane = st.sampled_from(LANES)
charged = {"charged": st.integers(1, 2)}
weights = st.sampled_from([0.25, 1.0, 1.0, 4.0])

COMMANDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "submit": {
        "owners": st.lists(either, min_size=1, max_size=4),
        "lane": any_lane,
        "key": st.sampled_from([None, None, "k", "l"]),
        "attempts": st.integers(1, 3),
        "bound": st.sampled_from([5, 100]),
        "weight": weights,
    },
    "submit_again": {"places": places},
    "submit_batch": {"owner": either, "lane": any_lane, "size": st.integers(1, 3)},
    "retry": {"places": places, "fresh": st.booleans()},
    "hand_over": {"runner": either, "owner": either, "lane": any_lane, "is_heard": st.booleans()} | charged,
    "hand_over_again": {"places": places},
    "hand_over_and_submit": {"runner": either, "owner": either, "lane": any_lane, "first": st.booleans()}
    | charged,
    "cancel": {"place": place, "owner": st.integers(0, 2)},
    "cancel_batch": {"place": place},
    "move": {"places": places, "lane": any_lane},
    "claim": {
        "runner": either,
        "free": st.sampled_from([4, 2, 1, 0]),
        "is_heard": st.booleans(),
        "most_alone": st.sampled_from([1, 1, 0]),
    },
    "finish": {
        "runner": either,
        "places": places,
        "kinds": st.lists(st.sampled_from(KINDS), min_size=3, max_size=3),
    },
    "progress": {"places": places},
    "add_items": {"places": places, "before": st.sampled_from([0, 0, 1, 2]), "count": st.integers(1, 3)},
    "renew": {"runner": either},
    "settle": {"reap": st.booleans(), "maintainer": either},
    "reap": {"runner": either, "is_stale": st.booleans(), "maintainer": either},
    "read": {"place": place},
    "sweep": {},
    "prune": {},
    "add_expired": {},
}
OFTEN = ["submit", "renew", "settle", "prune", *["claim", "finish"] * 5]
command = st.sampled_from([*COMMANDS, *OFTEN]).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries(COMMANDS[name]))
)


class Machine(Handovers):
    """A command that is `alone` can be held against the ledger as it was just before."""

    @initialize()
    def begin(self) -> None:
        """With jobs in several states, as else most examples would end before there are any."""
        submission = {"lane": "a", "key": None, "attempts": 2, "bound": 100, "weight": 1.0}
        self.one(("submit", submission | {"owners": [0, 1, 0, 1]}))
        self.one(("claim", {"runner": 0, "free": 3, "is_heard": True}))
        self.one(("finish", {"runner": 0, "places": [0], "kinds": ["failed"]}))
        self.one(("finish", {"runner": 0, "places": [1], "kinds": ["returned"]}))
        self.one(("submit", submission | {"owners": [0], "lane": "b", "key": "k"}))

    @rule(one=command)
    def one(self, one: tuple[str, dict[str, Any]]) -> None:
        self.do(self.give(one, alone=True))
        self.learn(alone=True)

    @rule(first=command, second=command)
    def two(self, first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]]) -> None:
        async def both() -> None:
            await asyncio.gather(self.give(first, alone=False), self.give(second, alone=False))

        self.do(both())
        self.learn(alone=False)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 31.0, 61.0, 301.0, 601.0]), place=place)
    def wait(self, seconds: float, place: int) -> None:
        """Long for one job only: all of them would be past their time."""
        for job_id in [None] if seconds < 60 else self.at(place):
            self.do(elapse(self.database, seconds, job_id))
            self.time_passed(seconds, job_id)

    def give(self, one: tuple[str, dict[str, Any]], *, alone: bool) -> Awaitable[None]:
        name, arguments = one
        return getattr(self, f"do_{name}")(alone=alone, **arguments)

    def at(self, place: int) -> list[str]:
        """One of the jobs, once there is any; it may be forgotten by now."""
        known = sorted(self.accepted)
        return [known[place % len(known)]] if known else []

    # ---------------------------------------------------------------- owners

    async def do_submit(
        self,
        *,
        alone: bool,
        owners: list[int],
        lane: str,
        key: str | None,
        attempts: int,
        bound: int,
        weight: float,
    ) -> None:
        jobs = [
            new_job(
                self.owners[owner],
                function=lane,
                idempotency_key=key,
                attempts=attempts,
                input=str(attempts).encode(),
                most_waiting=bound,
                cost=float(place),
                weight=weight,
            )
            for place, owner in enumerate(owners)
        ]
        self.offered |= {job.job_id: job for job in jobs}
        await self.answered(jobs)

    async def do_submit_again(self, *, alone: bool, places: list[int]) -> None:
        jobs = chosen([job for job in self.offered.values() if job.job_id in self.accepted], places)
        # By its id, what is forgotten would be a new job.
        jobs = [job for job in jobs if job.job_id not in self.forgotten and job.job_id not in self.final]
        await self.answered(jobs)
        assert {receipt.outcome for job, receipt in self.answers if job in jobs} <= {"replayed"}

    async def do_retry(self, *, alone: bool, places: list[int], fresh: bool) -> None:
        before = await self.jobs()
        ended_first = sorted(self.offered.values(), key=lambda job: job.job_id not in self.final)
        originals = chosen(ended_first, places)
        jobs = [
            msgspec.structs.replace(
                job, job_id=uuid7(), retry_of=job.job_id, attempts=1, most_waiting=100, attempt=0, charged=0
            )
            for job in originals
        ]
        if not fresh:  # two at once of the same: the second is a replay
            jobs += [msgspec.structs.replace(job, job_id=uuid7()) for job in jobs]
        self.offered |= {job.job_id: job for job in jobs}
        mine = await self.answered(jobs)
        if alone:
            for job, receipt in mine:
                row = before.get(str(job.retry_of))
                may = row is not None and row["state"] in FINAL and row["state"] != "succeeded"
                assert (receipt.outcome == "not-retryable") == (not may)

    async def answered(self, jobs: list[NewJob]) -> list[tuple[NewJob, Any]]:
        receipts = await submit(self.database, jobs, key_ttl_s=KEY_TTL_S)
        answers = list(zip(jobs, receipts, strict=True))
        self.answers += answers
        return answers

    async def do_submit_batch(self, *, alone: bool, owner: int, lane: str, size: int) -> None:
        job_ids = [uuid7() for _ in range(size)]

        async def parts() -> AsyncIterator[Part]:
            yield Part(job_ids[:1], [b"{}"], [bytes(32)])
            if size > 1:
                yield Part(job_ids[1:], [b"{}"] * (size - 1), [bytes(32)] * (size - 1))

        batch = NewBatch(
            batch_id=uuid7(),
            owner_id=self.owners[owner],
            function=lane,
            interface=INTERFACE,
            digest=bytes(32),
            costs=[1.0] * size,
            size=2 * size,
            attempts=2,
            queue_s=60.0,
            total_s=600.0,
            most_outstanding=10_000,
            most_waiting=10_000,
            key_ttl_s=KEY_TTL_S,
        )
        receipt = await batches.submit_batch(self.database, self.admissions, batch, parts())
        assert receipt.refusal is None
        self.batches.append(batch.batch_id)
        self.accepted |= dict.fromkeys(job_ids, 0)

    async def do_cancel(self, *, alone: bool, place: int, owner: int) -> None:
        for job_id in self.at(place):
            owner_id = None if owner == 2 else self.owners[owner]
            job = await cancelling.cancel(self.database, job_id, owner_id, "key:k")
            assert job is None or job.state in FINAL | {"cancel_requested"}

    async def do_cancel_batch(self, *, alone: bool, place: int) -> None:
        if self.batches:
            batch_id = self.batches[place % len(self.batches)]
            await batches.cancel_batch(self.database, batch_id, None, "operator:o")
            for row in (await self.jobs()).values():
                assert row["batch_id"] != batch_id or row["state"] in FINAL | {"cancel_requested"}

    async def do_move(self, *, alone: bool, places: list[int], lane: str) -> None:
        job_ids = sorted({job_id for place in places for job_id in self.at(place)})
        target = LANES[LANES[0] == lane]
        await self.database.execute(
            "SELECT move_v1(%s::uuid[], %s, %s, 'operator:o', %s)", [job_ids, lane, target, uuid.uuid4()]
        )

    # ---------------------------------------------------------------- runners

    async def do_claim(
        self, *, alone: bool, runner: int, free: int, is_heard: bool, most_alone: int = 1
    ) -> None:
        before = await self.jobs() if alone else {}
        claim_id = str(uuid.uuid4())
        if is_heard:
            self.in_flight[runner].add(claim_id)
        lanes = [Lane(lane, INTERFACE, 0) for lane in LANES]
        claimed = await self.runners[runner].claim_lanes(lanes, [free], claim_id, most_alone)
        self.in_flight[runner].discard(claim_id)
        assert len(claimed) <= free
        assert sum(job.alone for job in claimed) <= most_alone
        assert len({job.job_id for job in claimed}) == len(claimed)
        assert not {job.job_id for job in claimed} & self.final.keys()
        self.claims += [(job, runner) for job in claimed]
        if is_heard:  # of a job that is given again, the earlier start isn't the runner's any more
            again = {job.job_id for job in claimed}
            kept = {token: job for token, job in self.held[runner].items() if job.job_id not in again}
            self.held[runner] = kept | {job.token: job for job in claimed}
        if alone:
            assert all(job.alone == before[job.job_id]["alone"] for job in claimed)
            in_order({job.job_id for job in claimed}, before, free, most_alone)

    async def do_finish(self, *, alone: bool, runner: int, places: list[int], kinds: list[Kind]) -> None:
        before = await self.jobs()
        # Late ones too: of starts that were lost, given back or ended long ago.
        starts = chosen([start for start, whose in self.claims[::-1] if whose == runner], places)
        ends = [
            outcome(start, kind, **({"output": output(start.token)} if kind == "succeeded" else {}))
            for start, kind in zip(starts, kinds, strict=False)
        ]
        states = await self.runners[runner].finish(*ends, result_ttl_s=RESULT_TTL_S)
        for start in starts:
            self.held[runner].pop(start.token, None)
            if start.job_id in states:
                self.ends.append((start, states[start.job_id]))
        if alone:
            after = await self.jobs()
            for start in starts:
                was, now = before.get(start.job_id), after.get(start.job_id)
                is_live = was is not None and was["token"] == start.token and was["state"] not in FINAL
                assert is_live or without_time(now) == without_time(was)
                assert not is_live or start.job_id in states

    async def do_progress(self, *, alone: bool, places: list[int]) -> None:
        starts = chosen([start for start, _ in self.claims], places)
        reports = [Report(start.job_id, start.token, start.attempt, 0.5, "half") for start in starts]
        await execution.progress(self.database, reports)

    async def do_add_items(self, *, alone: bool, places: list[int], before: int, count: int) -> None:
        """Of starts that go on and of others, in one statement; from the first item on, or in the middle."""
        known = await self.jobs()
        starts = chosen([start for start, _ in self.claims[::-1]], places)
        given = [b"%d" % number for number in range(before, before + count)]
        verdicts = await items.add(
            self.database,
            [Group(start.job_id, start.token, start.attempt, before, given) for start in starts],
        )
        for start in starts if alone else []:
            was = known.get(start.job_id, {"state": None, "token": None})
            is_live = was["state"] == "running" and was["token"] == start.token
            if before == 0 or not is_live:  # else it may leave a gap
                assert verdicts[start.job_id] == ("written" if is_live else "lost")

    async def do_renew(self, *, alone: bool, runner: int) -> None:
        before = await self.jobs() if alone else {}
        held = dict(self.held[runner])
        renewal = await self.runners[runner].renew(*held.values(), claiming=list(self.in_flight[runner]))
        for token, job in held.items():
            if job.job_id in renewal.lost:
                self.held[runner].pop(token, None)
            if alone:
                row = before.get(job.job_id, {"state": None, "token": None})
                is_mine = row["state"] in {"running", "cancel_requested"} and row["token"] == token
                assert (job.job_id in renewal.lost) == (not is_mine)
                assert (job.job_id in renewal.cancelled) == (is_mine and row["state"] == "cancel_requested")

    # ---------------------------------------------------------------- maintenance

    async def do_settle(self, *, alone: bool, reap: bool, maintainer: int) -> None:
        before = Counter(row["state"] for row in (await self.jobs()).values()) if alone else Counter()
        settled = await settling.settle(self.database, f"gateway:{maintainer}", reap=reap)
        if alone:
            assert settled is not None
            after = Counter(row["state"] for row in (await self.jobs()).values())
            for state in ("expired", "failed", "cancelled"):
                assert after[state] - before[state] == getattr(settled, state)

    async def do_reap(self, *, alone: bool, runner: int, is_stale: bool, maintainer: int) -> None:
        session_id = self.runners[runner].session_id
        mark = (await settling.session_marks(self.database, [session_id]))[session_id]
        if mark is None:
            return
        if is_stale:
            mark = mark.replace(year=2000)
        moved = await settling.reap_session(self.database, session_id, mark, f"gateway:{maintainer}")
        assert not is_stale or not moved
        if alone and not is_stale:
            assert moved
            assert all(str(row["session_id"]) != session_id for row in (await self.jobs()).values())

    async def do_read(self, *, alone: bool, place: int) -> None:
        for job_id in self.at(place):
            job = await reading.find(self.database, job_id, None)
            assert (job is None) == (job_id in self.forgotten) or not alone

    async def do_sweep(self, *, alone: bool) -> None:
        swept = await settling.sweep(self.database)
        assert swept == settling.Swept(entries_deleted=0, entries_made=0)

    async def do_add_expired(self, *, alone: bool) -> None:
        assert await storing.add_expired(self.database, 2) <= 2

    async def do_prune(self, *, alone: bool) -> None:
        before = await self.jobs()
        await retention.prune_results(self.database, 9)
        await retention.prune_jobs(self.database, FORGET_AFTER_S, 9)
        await retention.prune_keys(self.database, 9)
        await retention.prune_flows(self.database, 9)
        for job_id in before.keys() - (await self.jobs()).keys():
            row = before[job_id]
            assert row["state"] in FINAL
            assert (row["now"] - row["finished_at"]).total_seconds() > FORGET_AFTER_S - 10
            assert row["result_expires_at"] is None or row["result_expires_at"] <= row["now"]
            self.forgotten.add(job_id)


def in_order(claimed: set[str], before: dict[str, Row], free: int, most_alone: int) -> None:
    """Claims follow the lanes' order: of what could be claimed, nothing is passed over for a later tag; but
    one at most of those that run alone is claimed, and it is the first.
    """
    for lane in LANES:
        waiting = [row for row in before.values() if row["function"] == lane and row["state"] == "queued"]
        here = claimed & {row["id"] for row in waiting}
        # What is near an edge of time may be on either side of it.
        near = [row for row in waiting if any(0 < seconds(row, name) < 5 for name in ("due_at", "settle_at"))]
        ready = [row for row in waiting if seconds(row, "due_at") <= 0 < seconds(row, "settle_at")]
        ready.sort(key=lambda row: (row["tag"], row["id"]))
        first = [row for row in ready if row["alone"]][: min(free, most_alone)]
        then = [row for row in ready if not row["alone"]][: free - len(first)]
        assert near or here == {row["id"] for row in first + then}
        free -= len(here)
        most_alone -= sum(row["alone"] for row in waiting if row["id"] in here)


def seconds(row: Row, name: str) -> float:
    """Until that time; without one, it is now."""
    return 0.0 if row[name] is None else (row[name] - row["now"]).total_seconds()


def without_time(row: Row | None) -> Row:
    return {name: value for name, value in (row or {}).items() if name != "now"}
