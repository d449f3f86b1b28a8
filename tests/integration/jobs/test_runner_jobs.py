"""Jobs through a whole runner on a real database."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest
from harness.job_runner import MODULES, RunningRunner, begun, lines, run, runner, submitter
from harness.postgres import query, terminate

from gpu_runner import runner as module
from gpu_runner.runner import Runner
from headrace.database import Listener
from headrace.errors import SetupError
from headrace.settings import load_settings


def test_a_job_is_executed_and_its_result_kept(database_url: str) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url) as served:
            job_id = await jobs.send("says", words="schön\x00")
            job = await jobs.end(job_id)
            assert (job.state, job.attempt, job.charged) == ("succeeded", 1, 1)
            assert await jobs.result(job_id) == "schön\x00"
            assert job.execution_s > 0
            actor = f"runner:{served.session_id}"
            story = [(event.from_state, event.state, event.actor) for event in await jobs.events(job_id)]
            assert story == [
                (None, "queued", f"owner:{jobs.owner_id}"),
                ("queued", "running", actor),
                ("running", "succeeded", actor),
            ]
        assert served.count("headrace_runner_jobs_claimed_total", function="says") == 1
        ended = served.count("headrace_runner_jobs_finished_total", function="says", outcome="succeeded")
        assert ended == 1
        assert served.count("headrace_runner_claim_seconds_count") >= 1

    run(scenario)


def test_many_jobs_of_many_functions_end_each_once(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url, executors=2):
            names = ["says", "wait_together", "marked"]
            inputs = {
                "says": {"words": "x"},
                "wait_together": {"seconds": 0.01},
                "marked": {"path": str(tmp_path / "marks")},
            }
            ids = await jobs.submit(*(jobs.job(names[n % 3], **inputs[names[n % 3]]) for n in range(150)))
            for job_id in ids:
                assert (await jobs.end(job_id)).state == "succeeded"
            assert lines(tmp_path / "marks") == ["start 1"] * 50
            assert {(await jobs.find(job_id)).attempt for job_id in ids} == {1}

    run(scenario)


def test_words_that_postgres_cannot_hold_are_recorded_without_them(database_url: str) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            job = await jobs.end(await jobs.send("fails_with", words="no\x00thing"))
            assert (job.state, job.error_category) == ("failed", "function-failed")
            assert job.error_message == "no\N{REPLACEMENT CHARACTER}thing"

    run(scenario)


def test_errors_of_an_input_are_recorded_with_their_places(database_url: str) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            job = await jobs.end(await jobs.send("refuses"))
            assert (job.state, job.error_category) == ("failed", "invalid-input")
            assert [one["path"] for one in job.error_errors] == ["/phase"]

    run(scenario)


def test_a_cancel_stops_the_execution_at_once(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            marks = tmp_path / "marks"
            job_id = await jobs.send("watched", path=str(marks))
            await begun(marks)
            assert (await jobs.cancel(job_id)).state == "cancel_requested"
            job = await jobs.end(job_id)
            assert (job.state, job.attempt) == ("cancelled", 1)
            # By the notification: a renewal, which tells of it too, comes only after five seconds.
            assert job.finished_at is not None
            assert job.started_at is not None
            assert (job.finished_at - job.started_at).total_seconds() < 4
            assert lines(marks)[-1] == "stopped"

    run(scenario)


def test_a_lost_executor_is_charged_and_the_job_starts_again(database_url: str) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            once, always = await jobs.send("dies_once"), await jobs.send("dies")
            job = await jobs.end(once)
            assert (job.state, job.attempt, job.charged) == ("succeeded", 2, 2)
            job = await jobs.end(always)
            assert (job.state, job.charged, job.error_category) == ("failed", 2, "attempts-exhausted")

    run(scenario)


def test_a_job_past_its_hard_limit_fails(database_url: str) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            job = await jobs.end(await jobs.send("stuck", seconds=60))
            assert (job.state, job.charged, job.error_category) == ("failed", 1, "hard-limit-exceeded")

    run(scenario)


def test_what_fails_for_now_is_tried_again_when_that_is_due(database_url: str) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            good, bad = await jobs.send("recovers"), await jobs.send("never_recovers")
            job = await jobs.end(good)
            assert (job.state, job.attempt, job.charged) == ("succeeded", 3, 3)
            job = await jobs.end(bad)
            assert (job.state, job.charged, job.error_category) == ("failed", 2, "attempts-exhausted")
            assert job.error_message.endswith("The last one: The function failed for now.")

    run(scenario)


def test_want_of_memory_is_tried_again_and_ends_as_on_the_direct_path(database_url: str) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            job = await jobs.end(await jobs.send("hungry"))
            assert (job.state, job.charged, job.error_category) == ("failed", 2, "attempts-exhausted")
            assert job.error_message.endswith("The last one: The function ran out of memory.")

    run(scenario)


def test_progress_is_recorded_but_not_each_step(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            job_id = await jobs.send("reports", path=str(tmp_path), seconds=1.3)
            job = await jobs.until(job_id, lambda job: job.progress is not None)
            assert job.progress == 0.5
            assert job.progress_message.startswith("step ")
            job = await jobs.end(job_id)
            assert int((await jobs.result(job_id)).split()[0]) > 20
            assert (job.progress, job.progress_message) == (1.0, "done")
            # Of its numbers, three are events of its own; at most two reports came a second, and the last.
            assert 1 <= job.sequence - 3 <= 5

    run(scenario)


def test_what_jobs_say_last_is_what_they_show(database_url: str) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            ids = await jobs.submit(*(jobs.job("reports_its_end", words=f"job {n}") for n in range(30)))
            for number, job_id in enumerate(ids):
                job = await jobs.end(job_id)
                assert (job.state, job.progress) == ("succeeded", 1.0)
                assert job.progress_message == f"job {number}"

    run(scenario)


@pytest.mark.slow
def test_an_outcome_whose_row_is_locked_holds_up_no_other(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            ids = [await jobs.send("wait_together", seconds=1) for _ in range(3)]
            for job_id in ids:
                await jobs.state(job_id, "running")
            locked = ids.pop(1)
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute("SELECT FROM job WHERE id = %s FOR UPDATE", [locked])
                for job_id in ids:
                    assert (await jobs.end(job_id)).state == "succeeded"
                later = await jobs.send("says", words="on")
                assert (await jobs.end(later)).state == "succeeded"
                assert (await jobs.find(locked)).state == "running"
            assert (await jobs.end(locked)).state == "succeeded"
            assert "due to lock timeout" in caplog.text

    run(scenario)


def test_a_leaving_runner_lets_its_jobs_end(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url) as served:
            running = await jobs.send("deaf", path=str(tmp_path / "marks"), seconds=1)
            await jobs.state(running, "running")
            waiting = await jobs.send("says")
            await served.stop()
            assert (await jobs.find(running)).state == "succeeded"
            assert (await jobs.find(waiting)).state == "queued"

    run(scenario)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_runner_that_leaves_gives_back_what_still_runs(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: int
) -> None:
    monkeypatch.setattr(module, "SAME_NOTICE_S", 0.0)
    drain_s = 0.2 if signals == 1 else 60

    async def scenario() -> None:
        marks = tmp_path / "marks"
        async with submitter(database_url) as jobs:
            async with runner(database_url, drain_seconds=drain_s) as first:
                job_id = await jobs.send("deaf", path=str(marks), seconds=1)
                await begun(marks)
                await first.stop(signals)
                job = await jobs.find(job_id)
                assert (job.state, job.attempt, job.charged) == ("queued", 1, 0)
            async with runner(database_url):
                job = await jobs.end(job_id)
                assert (job.state, job.attempt, job.charged) == ("succeeded", 2, 1)
        assert lines(marks) == ["start 1", "start 2", "end 2"]

    run(scenario)


def test_signals_that_come_together_are_one(database_url: str, tmp_path: Path) -> None:
    """A killed parent's end is told once for each of its threads."""

    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url) as served:
            marks = tmp_path / "marks"
            job_id = await jobs.send("deaf", path=str(marks), seconds=1)
            await begun(marks)
            await served.stop(signals=5)
            assert (await jobs.find(job_id)).state == "succeeded"

    run(scenario)


def test_a_signal_a_second_after_the_first_hurries(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.5, 100.99, 101.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    served = Runner(load_settings(functions=list(MODULES)), {})
    hurries: list[bool] = []
    for _ in range(4):
        served._signalled()
        hurries.append(served._hurrying.is_set())
    assert hurries == [False, False, False, True]


def test_a_runner_whose_direct_connection_cannot_work_ends_and_says_why(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        found = asyncio.Event()

        async def refused(_listener: object) -> None:
            await found.wait()
            raise SetupError("leads to a transaction-pooling proxy")

        async with submitter(database_url) as jobs:
            monkeypatch.setattr(Listener, "run", refused)
            served = RunningRunner(database_url)
            (job_id,) = await jobs.submit(jobs.job("says"))  # found by a look, not by being heard of
            assert (await jobs.end(job_id)).state == "succeeded"
            found.set()
            with pytest.raises(SetupError, match="pooling"):
                await served.task

    run(scenario)


def test_lost_connections_lose_nothing(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url):
            marks = tmp_path / "marks"
            job_id = await jobs.send("deaf", path=str(marks), seconds=1)
            await begun(marks)
            for name in ("headrace-runner", "headrace-runner-listen"):
                await asyncio.to_thread(terminate, database_url, name)
            job = await jobs.end(job_id)
            assert (job.state, job.attempt) == ("succeeded", 1)
            after = await jobs.end(await jobs.send("says", words="on"))
            assert after.state == "succeeded"
            assert lines(marks) == ["start 1", "end 1"]

    run(scenario)


CLAIM = (
    "SELECT claim_v1(%s::uuid, gen_random_uuid(), ARRAY['says'], ARRAY[%s],"
    " ARRAY[1], ARRAY[0.0], ARRAY[1], 60, 1)"
)


def test_a_job_that_was_claimed_without_the_runner_knowing_is_given_back(
    database_url: str, tmp_path: Path
) -> None:
    """The reply to its claim was lost."""

    async def scenario() -> None:
        async with submitter(database_url) as jobs, runner(database_url, lease=1) as served:
            running = await jobs.send("deaf", path=str(tmp_path / "marks"), seconds=1)
            await jobs.state(running, "running")
            lost = await jobs.send("says", words="x")  # no slot is free for it
            interface = jobs.manifests["says"].interface
            await asyncio.to_thread(query, database_url, CLAIM, served.session_id, interface)
            job = await jobs.end(lost)
            assert (job.state, job.attempt, job.charged) == ("succeeded", 2, 1)
            reasons = [event.reason for event in await jobs.events(lost)]
            assert "given back: the reply to its claim was lost" in reasons
            assert (await jobs.end(running)).attempt == 1

    run(scenario)
