"""Ends of handed-over calls that wait to be settled: bounded, and dropped only if nothing comes of them."""

from __future__ import annotations

import pytest
from handover_bench import Clock, hand_over, lose_replies, mend, run, tried
from job_bench import JobBench

from gpu_runner.frames import Done
from gpu_runner.jobs import unsettled
from headrace.errors import DatabaseBusy, DatabaseError, DatabaseUnavailable
from headrace.link.frames import Handed, Result


def test_while_much_waits_to_be_settled_no_more_is_sent_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unsettled, "MOST_BYTES", 2 * 1100)

    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        lose_replies(bench)
        bench.ledger.trouble["finish"] = lambda _: DatabaseUnavailable("it doesn't answer")
        known = [bench.gateway.send("many") for _ in range(3)]
        for job_id in known:
            hand_over(bench, job_id)
        await tried(bench)
        for job_id in known:  # all were sent: their ends wait, beyond the bound too
            executor.finish(job_id)
            assert isinstance(bench.told(job_id), Result)
        assert (bench.handovers.settling.count(), bench.handovers.settling.is_full) == (3, True)

        ends, runs = bench.gateway.send("many"), bench.gateway.send("many")
        hand_over(bench, ends)
        hand_over(bench, runs)
        await bench.settled()
        executor.finish(ends)
        assert isinstance(bench.told(ends), Result)  # as if nothing had been asked
        assert bench.told(runs) is None
        assert [one.job_id for one in bench.handovers._new] == [runs]
        assert {call.job_id for _, calls in bench.ledger.handovers for call in calls} == set(known)

        mend(bench)
        await bench.ledger.until(lambda: bench.told(runs))
        assert bench.told(runs) == Handed(runs)
        assert [bench.ledger.rows[job_id].state for job_id in known] == ["succeeded"] * 3
        assert ends not in bench.ledger.rows
        executor.finish(runs)

    run(scenario)


def test_large_outputs_count_against_what_may_wait_to_be_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsettled, "MOST_BYTES", 50_000)

    async def scenario(bench: JobBench, _: Clock) -> None:
        (executor,) = bench.executors
        lose_replies(bench)
        bench.ledger.trouble["finish"] = lambda _: DatabaseUnavailable("it doesn't answer")
        small, large = bench.gateway.send("many"), bench.gateway.send("many")
        hand_over(bench, small)
        hand_over(bench, large)
        await tried(bench)
        executor.finish(small)
        assert not bench.handovers.settling.is_full
        executor.say(Done(large, b'"%b"' % (b"x" * 50_000), 0.1))
        assert bench.handovers.settling.is_full
        mend(bench)
        await bench.ledger.until(lambda: not bench.handovers.settling.count())
        assert not bench.handovers.settling.is_full

    run(scenario)


@pytest.mark.parametrize(
    ("error", "is_dropped"),
    [(DatabaseError("no"), True), (DatabaseBusy("locked"), False), (DatabaseUnavailable("away"), False)],
)
def test_an_end_that_postgres_refuses_is_dropped_once_nothing_can_come_of_its_handover(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: DatabaseError, is_dropped: bool
) -> None:
    """Else it would count for good against what may wait, and no call would become a job any more."""
    monkeypatch.setattr(unsettled, "MOST_BYTES", 1)
    asked: list[float] = []

    async def scenario(bench: JobBench, clock: Clock) -> None:
        def refuse(_: object) -> DatabaseError:
            asked.append(clock.now)
            return error

        settling = bench.handovers.settling
        lose_replies(bench)
        bench.ledger.trouble["finish"] = refuse
        job_id = bench.gateway.send("many")
        hand_over(bench, job_id)
        await tried(bench)
        bench.executors[0].finish(job_id)
        await bench.ledger.until(lambda: len(asked) >= 2)
        assert settling.is_full  # it may come yet
        clock.now += 1000
        await bench.ledger.until(lambda: asked.count(clock.now) >= 2 or not settling.count())
        assert (settling.count(), settling.is_full) == ((0, False) if is_dropped else (1, True))
        assert (f"the end of job {job_id}" in caplog.text) == is_dropped
        mend(bench)
        await bench.ledger.until(lambda: not settling.count())
        assert bench.ledger.rows[job_id].writes == (0 if is_dropped else 1)

    with caplog.at_level("ERROR", unsettled.__name__):
        run(scenario)
