"""Runners that are cut off from Postgres while they hold jobs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from harness.job_runner import begun, lines, run, runner, submitter
from harness.relay import Relay, database_relay

from gpu_runner import runner as module
from gpu_runner.jobs.unwritten import CREDIT
from headrace.ledger import items
from headrace.ledger.items import Items

LEASE_S = 1.5


async def restore(relay: Relay) -> None:
    """After all that was on its way is lost."""
    await asyncio.to_thread(relay.cut)
    await asyncio.to_thread(relay.restore)


@pytest.mark.parametrize("trouble", ["cut", pytest.param("freeze", marks=pytest.mark.slow)])
def test_a_job_whose_lease_is_lost_is_killed_before_another_runner_starts_it(
    database_url: str, tmp_path: Path, trouble: str
) -> None:
    async def scenario(relay: Relay) -> None:
        marks = tmp_path / "marks"
        async with submitter(database_url) as jobs, runner(relay.url, lease=LEASE_S) as first:
            job_id = await jobs.send("deaf", path=str(marks), seconds=3)
            await begun(marks)
            async with runner(database_url, lease=LEASE_S) as second:
                await asyncio.to_thread(getattr(relay, trouble))
                job = await jobs.end(job_id)
                assert (job.state, job.attempt, job.charged) == ("succeeded", 2, 2)
                assert lines(marks) == ["start 1", "start 2", "end 2"]
                assert second.count("headrace_runner_jobs_claimed_total", function="deaf") == 1
            await restore(relay)
            # Nothing has to be started again.
            assert (await jobs.end(await jobs.send("says", words="x"))).state == "succeeded"
        assert first.count("headrace_runner_jobs_fenced_total", function="deaf") == 1

    with database_relay(database_url) as relay:
        run(lambda: scenario(relay))


@pytest.mark.slow
def test_a_runner_in_a_hurry_waits_for_no_postgres(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAME_NOTICE_S", 0.0)

    async def scenario(relay: Relay) -> None:
        marks = tmp_path / "marks"
        async with submitter(database_url) as jobs, runner(relay.url, lease=30) as served:
            await jobs.send("deaf", path=str(marks), seconds=30)
            await begun(marks)
            await asyncio.to_thread(relay.freeze)
            leaving = asyncio.create_task(served.stop())
            await until_unregistering()
            async with asyncio.timeout(6):  # a question to Postgres alone may take ten
                await asyncio.gather(served.stop(), leaving)

    with database_relay(database_url) as relay:
        run(lambda: scenario(relay))


async def until_unregistering() -> None:
    while not any("Registration.end" in repr(task.get_coro()) for task in asyncio.all_tasks()):
        await asyncio.sleep(0.01)


def test_a_stream_is_held_back_until_postgres_takes_it(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = 200

    async def scenario(relay: Relay) -> None:
        marks, go = tmp_path / "marks", tmp_path / "go"
        async with submitter(database_url) as jobs, runner(relay.url, lease=20):
            job_id = await jobs.send("yields", path=str(marks), go=str(go), count=count)
            await begun(marks)
            await asyncio.to_thread(relay.cut)
            go.touch()
            ahead = [
                "start",
                *(str(number) for number in range(CREDIT + 1)),
            ]  # the last one has nowhere to go
            while lines(marks) != ahead or "writing items of 1 jobs failed" not in caplog.text:
                await asyncio.sleep(0.01)
            assert lines(marks) == ahead
            assert (await items.story(jobs.database, job_id, 2)).parts == []
            await asyncio.to_thread(relay.restore)
            job = await jobs.end(job_id)
            assert (job.state, job.attempt, await jobs.result(job_id)) == ("succeeded", 1, [*range(count)])
            parts, _ = await items.story(jobs.database, job_id, 2)
            written = [item for part in parts if isinstance(part, Items) for item in part.items]
            assert written == [b"%d" % number for number in range(count)]

    with database_relay(database_url) as relay:
        run(lambda: scenario(relay))


def test_an_outage_shorter_than_the_lease_costs_no_start(database_url: str, tmp_path: Path) -> None:
    async def scenario(relay: Relay) -> None:
        marks = tmp_path / "marks"
        async with submitter(database_url) as jobs, runner(relay.url, lease=10):
            job_id = await jobs.send("deaf", path=str(marks), seconds=0.5)
            await begun(marks)
            await asyncio.to_thread(relay.cut)
            while lines(marks) != ["start 1", "end 1"]:
                await asyncio.sleep(0.01)
            assert (await jobs.find(job_id)).state == "running"
            await asyncio.to_thread(relay.restore)
            job = await jobs.end(job_id)
            assert (job.state, job.attempt) == ("succeeded", 1)

    with database_relay(database_url) as relay:
        run(lambda: scenario(relay))


def test_an_outcome_whose_confirmation_was_lost_is_sent_again(database_url: str) -> None:
    async def scenario(relay: Relay) -> None:
        async with submitter(database_url) as jobs, runner(relay.url, lease=30) as served:
            await jobs.end(await jobs.send("says", words="it is up"))
            await asyncio.to_thread(relay.hold_answers, "finish_v2")
            job = await jobs.end(await jobs.send("says", words="x"))
            assert job.state == "succeeded"
            await restore(relay)
            assert (await jobs.end(await jobs.send("says", words="y"))).state == "succeeded"
        assert served.count("headrace_runner_jobs_fenced_total", function="says") == 0
        labels = {"function": "says", "outcome": "succeeded"}
        assert served.count("headrace_runner_jobs_finished_total", **labels) == 3

    with database_relay(database_url) as relay:
        run(lambda: scenario(relay))


def test_a_claim_whose_reply_was_lost_is_given_back_and_claimed_again(database_url: str) -> None:
    async def scenario(relay: Relay) -> None:
        async with submitter(database_url) as jobs, runner(relay.url, lease=3):
            await jobs.end(await jobs.send("says", words="it is up"))
            for _ in range(5):  # a claim may be on its way already when answers are held: it gets its reply
                await asyncio.to_thread(relay.hold_answers, "claim_v2")
                job_id = await jobs.send("says", words="x")
                with suppress(TimeoutError):  # or a claim that brought nothing is the one that waits
                    async with asyncio.timeout(4):
                        await jobs.until(job_id, lambda job: job.attempt > 0)
                await restore(relay)
                job = await jobs.end(job_id)
                if job.attempt > 1:
                    break
            assert (job.state, job.attempt, job.charged) == ("succeeded", 2, 1)
            reasons = [event.reason for event in await jobs.events(job_id)]
            assert "given back: the reply to its claim was lost" in reasons

    with database_relay(database_url) as relay:
        run(lambda: scenario(relay))
