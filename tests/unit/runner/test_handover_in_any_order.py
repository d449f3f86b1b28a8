"""Handovers, whatever happens to the calls and to Postgres in whatever order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from handover_bench import DIGEST, WORKS, Clock, check_nothing_is_left, stopped_clock
from hypothesis import given, settings
from hypothesis import strategies as st
from job_bench import JobBench, Row, job_bench

from gpu_runner.frames import Failed
from headrace.errors import DatabaseError, DatabaseNotReached, DatabaseUnavailable
from headrace.ledger.handover import HandedOver, Recorded
from headrace.link.frames import Error, Fenced, Handed, Handover, Lost, Result

CALLS = ("a", "b", "c")  # more than have slots: two run, one waits
ERRORS = {
    "refused": DatabaseError("no"),
    "not reached": DatabaseNotReached("nobody listens"),
    "lost before its effect": DatabaseUnavailable("lost"),
}
OF_CALLS = ("hand over", "stop", "end", "fail for now", "fail", "another has it", "reaped", "cancel")
OF_ALL = ("executor lost", "link lost", "time passes", "reply", "reply lost", *ERRORS)


class Chance:
    """Does what it is told, and knows what must come of it."""

    def __init__(self, bench: JobBench, clock: Clock) -> None:
        self.bench = bench
        self.clock = clock
        self.asked: set[str] = set()  # its handover was read while it was its gateway's
        self.given_up: set[str] = set()  # stopped, or its link lost, before that
        self.reaped: set[str] = set()
        self.passed = 0  # so often time has, since a transaction was answered
        self.answered_when_sent: list[str] = []
        self._record = bench.ledger.hand_over
        bench.ledger.hand_over = self._hand_over  # type: ignore[method-assign]
        bench.ledger.open["hand_over"].clear()

    async def _hand_over(self, claim_id: str, calls: Sequence[HandedOver]) -> dict[str, Recorded]:
        self.answered_when_sent += [call.job_id for call in calls if self.bench.told(call.job_id)]
        return await self._record(claim_id, calls)

    async def step(self, what: str, job_id: str) -> None:
        if job_id:
            self.happens(what, job_id)
        elif what in ("reply", "reply lost", *ERRORS):
            await self.answer_a_transaction(what)
        else:
            self.happens_to_all(what)
        if self.passed == 3:  # no transaction takes a minute: long before, it is cut
            await self.answer_a_transaction("lost before its effect")
        await self.bench.settled()

    def happens(self, what: str, job_id: str) -> None:
        bench = self.bench
        match what:
            case "hand over":
                if bench.told(job_id) is None and job_id not in self.given_up:
                    self.asked.add(job_id)
                bench.supervisor.hand_over(Handover(job_id, digest=DIGEST), bench.gateway)
            case "stop":
                self.give_up(job_id)
                bench.gateway.stop(job_id)
            case "another has it":
                bench.ledger.rows.setdefault(job_id, Row("another", "queued"))
            case "reaped":
                row = bench.ledger.rows.get(job_id)
                if row is not None and row.state == "running" and row.token != "another":
                    self.reaped.add(job_id)
                    bench.ledger.rows[job_id] = Row("of the next start", "queued", row.writes)
            case "cancel":
                bench.handovers.cancelled(job_id)
                bench.feed.cancelled(job_id)
            case _:
                self.end(job_id, what)

    def happens_to_all(self, what: str) -> None:
        (executor,) = self.bench.executors
        match what:
            case "link lost":
                for each in CALLS:
                    self.give_up(each)
                self.bench.supervisor.caller_lost(self.bench.gateway)
            case "executor lost":
                executor.lose()
                executor.become_ready()
            case _:  # time passes
                self.passed += 1
                self.clock.now += 20
                self.bench.handovers.guard(self.clock.now)

    def give_up(self, job_id: str) -> None:
        if job_id not in self.asked:
            self.given_up.add(job_id)

    def end(self, job_id: str, how: str) -> None:
        (executor,) = self.bench.executors
        if job_id not in executor.calls:
            return
        if how == "end":
            executor.finish(job_id)
        else:
            executor.say(Failed(job_id, "function-failed", "", 0.1, retryable=how == "fail for now"))

    async def answer_a_transaction(self, what: str) -> None:
        ledger = self.bench.ledger
        self.passed = 0
        ledger.trouble.clear()
        if what == "reply lost":
            ledger.trouble["reply"] = lambda _: DatabaseUnavailable("lost")
        elif what in ERRORS:
            ledger.trouble["hand_over"] = lambda _: ERRORS[what]
        ledger.open["hand_over"].set()
        await self.bench.turn()  # the one that waits goes on; the next one finds it closed
        ledger.open["hand_over"].clear()
        await self.bench.settled()
        ledger.trouble.clear()

    async def finish(self) -> None:
        """Nothing is in the way any more, and all calls end."""
        bench = self.bench
        (executor,) = bench.executors
        bench.ledger.trouble.clear()
        bench.ledger.open["hand_over"].set()
        await bench.settled()
        if not executor.is_ready:  # it was killed, as a lease ran out
            executor.lose()
            executor.become_ready()
        while bench.supervisor._calls:
            for job_id in list(executor.calls):
                executor.finish(job_id)
            await bench.settled()
        self.clock.now += 1000
        await bench.ledger.until(lambda: not (bench.handovers._open or bench.handovers.settling.count()))
        await bench.ledger.until(lambda: not bench.held.named())

    def check(self) -> None:
        bench = self.bench
        assert self.answered_when_sent == []  # who is answered isn't recorded anew
        check_nothing_is_left(bench)
        runs = bench.executors[0].runs
        for job_id in CALLS:
            self._check(job_id, bench.told(job_id), bench.ledger.rows.get(job_id))
            assert runs.count(job_id) <= 1

    def _check(self, job_id: str, told: Any, row: Row | None) -> None:
        is_ours = row is not None and row.token not in ("another", "of the next start")
        if is_ours:
            assert row is not None
            assert (row.writes, row.state != "running") == (1, True)  # its end is written, once
        match told:
            case Handed(withdrawn=True):
                assert not is_ours
                assert job_id not in self.bench.starts()
            case Handed():
                assert row is not None
                assert is_ours or job_id in self.reaped
            case Fenced():
                assert row is not None
                assert not is_ours
            case Result():
                assert not is_ours or row is None or row.state == "succeeded"
            case Error() | Lost():
                pass
            case _:
                assert told is None
                assert job_id in self.given_up


STEP = st.tuples(st.sampled_from(OF_CALLS), st.sampled_from(CALLS)) | st.tuples(
    st.sampled_from(OF_ALL), st.just("")
)
HANDED_OVER = st.sets(st.sampled_from(CALLS), min_size=1).map(
    lambda calls: [("hand over", job_id) for job_id in sorted(calls)]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=3), HANDED_OVER, st.lists(STEP, min_size=3, max_size=25))
def test_every_call_is_answered_once_and_its_row_if_any_comes_to_its_end(
    before: list[tuple[str, str]], handed_over: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(20), job_bench(*WORKS, modules=("two_at_once",)) as bench:
            for job_id in CALLS:
                bench.gateway.send("pair_of", job_id=job_id)
            chance = Chance(bench, clock)
            for what, job_id in (*before, *handed_over, *after):
                await chance.step(what, job_id)
            await chance.finish()
            chance.check()

    with stopped_clock() as clock:
        asyncio.run(scenario())
