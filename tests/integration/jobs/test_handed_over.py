"""Direct calls that become jobs while they run, on a whole runner and a real database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.dialled import dialled
from harness.job_runner import Submitter, begun, lines, run, runner, submitter
from harness.postgres import query
from harness.relay import database_relay

from headrace.ledger import reading
from headrace.ledger.reading import Job
from headrace.link.frames import Handed, Result

COUNT = "SELECT count(*) FROM job"


def place(folder: Path) -> dict[str, Any]:
    return {"runner_advertise": f"unix:{folder}/link"}


async def end(jobs: Submitter, job_id: str) -> Job:
    """The job at its end, which is told only of those that somebody watches."""
    await reading.watch(jobs.database, job_id, jobs.gateway_id, follow=True)
    return await jobs.end(job_id)


def test_a_call_goes_on_as_a_job(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        marks = tmp_path / "marks"
        where = place(tmp_path)
        async with submitter(database_url) as jobs, runner(database_url, **where) as served:
            async with dialled(jobs, where["runner_advertise"]) as gateway:
                assert gateway.hello.hands_over
                job_id = gateway.send("marked", path=str(marks), seconds=0.5)
                await begun(marks)
                gateway.hand_over(job_id)
                assert await gateway.answer(job_id) == Handed(job_id)
                job = await jobs.find(job_id)
                assert (job.state, job.attempt, job.charged) == ("running", 1, 1)
                job = await end(jobs, job_id)
                assert (job.state, job.attempt) == ("succeeded", 1)
                assert await jobs.result(job_id) == 1
            assert lines(marks) == ["start 1"]
            story = [(event.from_state, event.state) for event in await jobs.events(job_id)]
            assert story == [(None, "running"), ("running", "succeeded")]
            assert served.count("headrace_runner_handovers_total", function="marked", outcome="recorded") == 1
            assert served.count("headrace_runner_handover_seconds_count") == 1

    run(scenario)


def test_it_goes_on_without_its_gateway(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        marks = tmp_path / "marks"
        where = place(tmp_path)
        async with submitter(database_url) as jobs, runner(database_url, **where):
            async with dialled(jobs, where["runner_advertise"]) as gateway:
                job_id = gateway.send("marked", path=str(marks), seconds=1)
                await begun(marks)
                gateway.hand_over(job_id)
                await gateway.answer(job_id)
            assert (await end(jobs, job_id)).state == "succeeded"
            assert lines(marks) == ["start 1"]

    run(scenario)


def test_its_owner_can_cancel_it(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        marks = tmp_path / "marks"
        where = place(tmp_path)
        async with (
            submitter(database_url) as jobs,
            runner(database_url, **where),
            dialled(jobs, where["runner_advertise"]) as gateway,
        ):
            job_id = gateway.send("marked", path=str(marks), seconds=30)
            await begun(marks)
            gateway.hand_over(job_id)
            await gateway.answer(job_id)
            await jobs.cancel(job_id)
            job = await end(jobs, job_id)
            assert (job.state, job.attempt) == ("cancelled", 1)

    run(scenario)


def test_a_runner_that_leaves_gives_it_back_and_another_starts_it(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        marks = tmp_path / "marks"
        where = place(tmp_path)
        async with submitter(database_url) as jobs:
            async with runner(database_url, drain_seconds=0, **where) as first:
                async with dialled(jobs, where["runner_advertise"]) as gateway:
                    job_id = gateway.send("deaf", path=str(marks), seconds=3)
                    await begun(marks)
                    gateway.hand_over(job_id)
                    await gateway.answer(job_id)
                await first.stop()
            job = await jobs.find(job_id)
            assert (job.state, job.charged) == ("queued", 0)
            async with runner(database_url):
                job = await end(jobs, job_id)
            assert (job.state, job.attempt, job.charged) == ("succeeded", 2, 1)
            assert lines(marks) == ["start 1", "start 2", "end 2"]

    run(scenario)


@pytest.mark.parametrize("ends", ["after Postgres is back", "while it is away"])
def test_a_commit_whose_reply_is_lost_is_found_again(database_url: str, tmp_path: Path, ends: str) -> None:
    """It ran once, whatever its gateway was told."""
    is_meanwhile = ends == "while it is away"

    async def scenario() -> None:
        marks = tmp_path / "marks"
        where = place(tmp_path)
        with database_relay(database_url) as relay:
            async with (
                submitter(database_url) as jobs,
                runner(relay.url, **where) as served,
                dialled(jobs, where["runner_advertise"]) as gateway,
            ):
                job_id = gateway.send("marked", path=str(marks), seconds=1 if is_meanwhile else 4)
                await begun(marks)
                await asyncio.to_thread(relay.hold_answers, "handover_v1")
                gateway.hand_over(job_id)
                while not query(database_url, COUNT)[0][0]:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(relay.cut)
                if is_meanwhile:
                    answer = await gateway.answer(job_id)
                    assert isinstance(answer, Result)
                    assert answer.output == b"1"
                    assert (await jobs.find(job_id)).state == "running"
                await asyncio.to_thread(relay.restore)
                assert is_meanwhile or await gateway.answer(job_id) == Handed(job_id)
                job = await end(jobs, job_id)
                assert (job.state, job.attempt, job.charged) == ("succeeded", 1, 1)
                assert lines(marks) == ["start 1"]
            outcome = "answered" if is_meanwhile else "recorded"
            assert served.count("headrace_runner_handovers_total", function="marked", outcome=outcome) == 1

    run(scenario)


def test_with_postgres_away_its_result_is_the_answer_and_nothing_is_recorded(
    database_url: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        marks = tmp_path / "marks"
        where = place(tmp_path)
        with database_relay(database_url) as relay:
            async with (
                submitter(database_url) as jobs,
                runner(relay.url, **where),
                dialled(jobs, where["runner_advertise"]) as gateway,
            ):
                job_id = gateway.send("marked", path=str(marks), seconds=1)
                await begun(marks)
                await asyncio.to_thread(relay.cut)
                gateway.hand_over(job_id)
                assert isinstance(await gateway.answer(job_id), Result)
                await asyncio.to_thread(relay.restore)
                assert (await jobs.end(await jobs.send("says", words="x"))).state == "succeeded"
            assert query(database_url, COUNT)[0][0] == 1

    run(scenario)
