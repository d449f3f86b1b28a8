"""How outcomes reach the ledger, and progress beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from job_bench import JobBench, a_job, job_bench

from gpu_runner.frames import Failed, Reported
from gpu_runner.jobs import finishing as module
from gpu_runner.jobs import reporting
from gpu_runner.jobs.held import HeldJob
from gpu_runner.jobs.outcomes import outcome_of
from headrace.errors import DatabaseError, DatabaseUnavailable
from headrace.gateway.problem_kinds import KINDS
from headrace.ledger.execution import Claimed, Outcome
from headrace.link.frames import Call, Error, Lost, Refused, Result


def run(scenario: Callable[[JobBench], Awaitable[None]], *works: str) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), job_bench("feed", *works) as bench:
            await scenario(bench)

    asyncio.run(limited())


async def running(bench: JobBench, number: int) -> list[Claimed]:
    jobs = [a_job("together") for _ in range(number)]
    bench.submit(*jobs)
    await bench.ledger.until(lambda: len(bench.starts()) == number)
    return jobs


def sizes(bench: JobBench) -> list[int]:
    return [len(batch) for batch in bench.ledger.batches]


def test_outcomes_gather_while_others_are_on_their_way() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        jobs = await running(bench, 6)
        bench.ledger.open["finish"].clear()
        for job in jobs:
            executor.finish(job.job_id)
            await bench.settled()
        bench.ledger.open["finish"].set()
        await bench.settled()
        assert sizes(bench) == [1, 5]
        assert bench.finishing.is_empty
        assert bench.held.named() == []

    run(scenario, "finish")


def test_trouble_is_tried_again_until_the_ledger_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        failures = iter(range(3))
        bench.ledger.trouble["finish"] = lambda _: (
            DatabaseUnavailable("away") if next(failures, None) is not None else None
        )
        jobs = await running(bench, 2)
        for job in jobs:
            executor.finish(job.job_id)
        await bench.ledger.until(lambda: bench.ledger.batches)
        assert [outcome.job_id for outcome in bench.ledger.batches[0]] == [job.job_id for job in jobs]
        assert caplog.text.count("recording 2 outcomes failed") == 1

    run(scenario, "finish")


def test_an_outcome_that_postgres_refuses_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REFUSED_PAUSE_S", 0.1)

    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        jobs = await running(bench, 4)
        bad = jobs[1].job_id

        def refuse(outcomes: Sequence[Outcome]) -> Exception | None:
            return DatabaseError("odd") if bad in {one.job_id for one in outcomes} else None

        bench.ledger.trouble["finish"] = refuse
        for job in jobs:
            executor.finish(job.job_id)
        await bench.ledger.until(lambda: len(bench.ledger.outcomes) == 3)
        assert bad not in bench.ledger.outcomes
        assert not bench.finishing.is_empty
        later = a_job("together")
        bench.submit(later)
        await bench.started(later)
        executor.finish(later.job_id)
        await bench.ledger.until(lambda: later.job_id in bench.ledger.outcomes)
        bench.ledger.trouble.clear()
        await bench.ledger.until(lambda: bad in bench.ledger.outcomes)

    run(scenario, "finish")


def test_a_fenced_outcome_is_discarded_and_counted() -> None:
    async def scenario(bench: JobBench) -> None:
        (job,) = await running(bench, 1)
        bench.ledger.fenced = {job.job_id}
        bench.executors[0].finish(job.job_id)
        await bench.settled()
        assert bench.held.named() == []
        assert bench.count("headrace_runner_jobs_fenced_total", function="together") == 1
        labels = {"function": "together", "outcome": "succeeded"}
        assert bench.count("headrace_runner_jobs_finished_total", **labels) == 0

    run(scenario, "finish")


def test_large_outputs_go_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 5)  # each output has two bytes

    async def scenario(bench: JobBench) -> None:
        for job in await running(bench, 5):
            bench.executors[0].finish(job.job_id)
        await bench.settled()
        assert sizes(bench) == [2, 2, 1]

    run(scenario, "finish")


def test_what_could_not_be_sent_in_time_goes_behind_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large outcome over a slow line: it mustn't keep all others from the ledger for ever."""
    monkeypatch.setattr(module, "_MOST_BYTES", 1)  # each goes alone

    async def scenario(bench: JobBench) -> None:
        jobs = await running(bench, 3)
        slow = iter([DatabaseUnavailable("no answer within 10 s")])
        bench.ledger.trouble["finish"] = lambda _: next(slow, None)
        for job in jobs:
            bench.executors[0].finish(job.job_id)
        await bench.ledger.until(lambda: len(bench.ledger.outcomes) == 3)
        assert list(bench.ledger.outcomes) == [job.job_id for job in (*jobs[1:], jobs[0])]

    run(scenario, "finish")


def test_a_flush_ends_when_all_is_recorded() -> None:
    async def scenario(bench: JobBench) -> None:
        await bench.finishing.flush()
        bench.ledger.open["finish"].clear()
        for job in await running(bench, 2):
            bench.executors[0].finish(job.job_id)
        await bench.settled()
        flushing = asyncio.create_task(bench.finishing.flush())
        await bench.settled()
        assert not flushing.done()
        assert bench.finishing.count() == 2
        bench.ledger.open["finish"].set()
        await flushing
        assert bench.finishing.count() == 0

    run(scenario, "finish")


def test_progress_is_sent_newest_only_and_never_twice_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "EVERY_S", 0.1)

    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        one, other = await running(bench, 2)
        executor.say(Reported(one.job_id, 0.1, "begins"))
        await bench.settled()
        for step in range(2, 9):
            executor.say(Reported(one.job_id, step / 10, f"step {step}"))
            executor.say(Reported(other.job_id, step / 100, "slow"))
        executor.say(Reported("a stranger", 0.5, ""))
        await bench.settled()
        assert [[report.message for report in reports] for reports in bench.ledger.reports] == [["begins"]]
        await bench.ledger.until(lambda: len(bench.ledger.reports) == 2)
        assert [tuple(report) for report in bench.ledger.reports[1]] == [
            (one.job_id, one.token, 1, 0.8, "step 8"),
            (other.job_id, other.token, 1, 0.08, "slow"),
        ]
        for job in (one, other):
            executor.finish(job.job_id)

    run(scenario, "finish", "report")


def test_what_a_job_told_last_is_recorded_before_its_end() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        order: list[str] = []
        bench.ledger.trouble["progress"] = lambda _: order.append("progress")
        bench.ledger.trouble["finish"] = lambda _: order.append("finish")
        one, other, silent = await running(bench, 3)
        executor.say(Reported(one.job_id, 0.1, "begins"))
        executor.say(Reported(other.job_id, 0.2, "begins"))
        await bench.settled()
        executor.say(Reported(one.job_id, 1.0, "done"))  # too soon for another report
        for job in (one, other, silent):
            executor.finish(job.job_id)
        await bench.settled()
        assert order == ["progress", "progress", "finish"]
        assert [tuple(report) for report in bench.ledger.reports[1]] == [
            (one.job_id, one.token, 1, 1.0, "done")
        ]
        assert sizes(bench) == [3]

    run(scenario, "finish", "report")


def test_a_report_that_is_on_its_way_when_its_job_ends_is_not_overtaken() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        (job,) = await running(bench, 1)
        bench.ledger.open["progress"].clear()
        executor.say(Reported(job.job_id, 1.0, "done"))
        await bench.settled()
        executor.finish(job.job_id)
        await bench.settled()
        assert bench.ledger.batches == []  # as nobody knows whether the report has arrived
        bench.ledger.open["progress"].set()
        await bench.settled()
        assert {report.message for reports in bench.ledger.reports for report in reports} == {"done"}
        assert sizes(bench) == [1]

    run(scenario, "finish", "report")


@pytest.mark.parametrize("error", [DatabaseError("odd"), DatabaseUnavailable("away"), None])
def test_last_words_that_cannot_be_recorded_hold_up_no_end(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS_S", 0.01)

    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        (job,) = await running(bench, 1)
        if error is None:  # it says nothing
            bench.ledger.open["progress"].clear()
        bench.ledger.trouble["progress"] = lambda _: error
        executor.say(Reported(job.job_id, 1.0, "done"))
        executor.finish(job.job_id)
        await bench.ledger.until(lambda: bench.ledger.batches)
        await bench.settled()
        assert bench.finishing.is_empty
        assert bench.ledger.reports == []

    run(scenario, "finish", "report")


def test_last_words_wait_for_postgres_as_outcomes_do() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        failures = iter(range(2))

        def away(_: object) -> Exception | None:
            return DatabaseUnavailable("away") if next(failures, None) is not None else None

        bench.ledger.trouble = {"progress": away, "finish": away}
        (job,) = await running(bench, 1)
        executor.say(Reported(job.job_id, 1.0, "done"))
        executor.finish(job.job_id)
        await bench.ledger.until(lambda: bench.ledger.batches)
        assert [report.message for (report,) in bench.ledger.reports] == ["done"]

    run(scenario, "finish")


ERROR = Error("job", "function-failed", "It broke.", 1, 0.0, 250.0)
STOPPED = Error("job", "cancelled", "The call was stopped.", 1, 0.0, 250.0)
HARD = Error("job", "hard-limit-exceeded", "Too long.", 1, 0.0, 250.0)
PASSING = Error("job", "transient", "For now.", 1, 0.0, 250.0, retryable=True)
INVALID = Error("job", "invalid-input", "Odd.", 1, 0.0, 250.0, errors=(("/a", "odd"),))
CRASHED, NEIGHBOUR = Lost("job", 1, charged=True), Lost("job", 1, charged=False)
GIVEN_BACK = Lost("job", 1, charged=False, suspect=False)


@pytest.mark.parametrize(
    ("answer", "ended_by", "kind", "category"),
    [
        (Result("job", b"1", 1, 0.0, 250.0), "", "succeeded", ""),
        (Result("job", b"1", 1, 0.0, 250.0), "lease", "succeeded", ""),
        (Result("job", b"1", 1, 0.0, 250.0), "cancel", "succeeded", ""),  # the ledger knows better
        (ERROR, "", "failed", "function-failed"),
        (ERROR, "lease", "failed", "function-failed"),
        (INVALID, "", "failed", "invalid-input"),
        (PASSING, "", "retry", "attempts-exhausted"),
        (HARD, "", "failed", "hard-limit-exceeded"),
        (HARD, "cancel", "failed", "hard-limit-exceeded"),
        (HARD, "lease", "returned", "worker-lost"),
        (HARD, "leaving", "returned", "worker-lost"),
        (STOPPED, "cancel", "failed", "cancelled"),
        (STOPPED, "lease", "returned", "worker-lost"),
        (STOPPED, "leaving", "returned", "worker-lost"),
        (STOPPED, "", "returned", "worker-lost"),
        (CRASHED, "", "lost", "worker-lost"),
        (CRASHED, "lease", "lost", "worker-lost"),
        (CRASHED, "cancel", "failed", "cancelled"),
        (NEIGHBOUR, "", "displaced", "worker-lost"),
        (NEIGHBOUR, "lease", "returned", "worker-lost"),
        (NEIGHBOUR, "leaving", "returned", "worker-lost"),
        (NEIGHBOUR, "cancel", "failed", "cancelled"),
        (GIVEN_BACK, "", "returned", "worker-lost"),
        (GIVEN_BACK, "leaving", "returned", "worker-lost"),
        (GIVEN_BACK, "cancel", "failed", "cancelled"),
        (Refused("job", "degraded"), "", "returned", "worker-lost"),
    ],
)
def test_what_an_answer_says_to_the_ledger(answer: Any, ended_by: Any, kind: str, category: str) -> None:
    job = a_job(job_id="job")
    outcome = outcome_of(job, answer, ended_by)
    assert (outcome.job_id, outcome.token, outcome.attempt) == ("job", job.token, 1)
    assert (outcome.kind, outcome.category) == (kind, category)
    # The ledger may end the job with it; one that was told to stop is cancelled there.
    assert category in {*KINDS, "cancelled", ""}
    assert (outcome.output is not None) == (kind == "succeeded")
    assert bool(outcome.message) == (kind != "succeeded")
    assert outcome.execution_s == (0.25 if isinstance(answer, Result | Error) else 0.0)
    assert outcome.errors == ((("/a", "odd"),) if answer is INVALID else ())


def test_a_passing_failure_says_before_when_another_start_is_in_vain() -> None:
    error = msgspec.structs.replace(PASSING, retry_after_s=30.0)
    assert outcome_of(a_job(), error, "").not_before == pytest.approx(time.monotonic() + 30, abs=5)
    assert outcome_of(a_job(), PASSING, "").not_before == 0.0


def test_what_is_given_back_as_it_is_busy_says_until_when() -> None:
    outcome = outcome_of(a_job(), Refused("job", "full", retry_after_s=30.0), "")
    assert (outcome.kind, outcome.not_before) == ("returned", pytest.approx(time.monotonic() + 30, abs=5))
    assert outcome_of(a_job(), Refused("job", "degraded"), "").not_before == 0.0


def test_a_start_has_one_outcome() -> None:
    ended: list[HeldJob] = []
    job = HeldJob(a_job(), 0.0, ended.append, lambda _: None)
    job.answer(CRASHED)
    job.answer(PASSING)
    assert ended == [job]
    assert job.outcome is not None
    assert job.outcome.kind == "lost"


def test_the_function_is_told_what_the_ledger_knows() -> None:
    def frame(job: Claimed) -> Call:
        return HeldJob(job, 0.0, lambda _: None, lambda _: None).frame("1234")

    call = frame(a_job(left=1.5, attempt=3))
    assert (call.interface, call.attempt, call.remaining_ms, call.owner) == ("1234", 3, 1500, "o")
    assert [frame(a_job(alone=alone)).alone for alone in (True, False)] == [True, False]
    assert HeldJob(a_job(left=-1), 0.0, print, print).frame("1234").remaining_ms == 0


def test_an_executor_that_fails_a_job_is_heard() -> None:
    async def scenario(bench: JobBench) -> None:
        (job,) = await running(bench, 1)
        bench.executors[0].say(Failed(job.job_id, "transient", "For now.", 0.1, retryable=True))
        await bench.settled()
        assert bench.ledger.outcomes[job.job_id].kind == "retry"

    run(scenario, "finish")
