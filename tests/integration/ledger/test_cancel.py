from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from harness.ledger import (
    LANE,
    Runner,
    check_ledger,
    elapse,
    make_owner,
    new_job,
    opened,
    queue,
    row,
    state,
    story,
    submit_one,
)
from psycopg import sql

from headrace.database import Database
from headrace.ledger import execution, reading, settling
from headrace.ledger.cancelling import cancel
from headrace.ledger.execution import Report
from headrace.ledger.submission import submit

KEY = "key:k"
Heard = Callable[[], list[tuple[str, str]]]


def of_gateway(gateway: str) -> str:
    return f"headrace_jobs_{gateway.replace('-', '')}"


def of_runner(runner: Runner) -> str:
    return f"headrace_cancel_{runner.session_id.replace('-', '')}"


@contextmanager
def listening(url: str, *channels: str) -> Iterator[Heard]:
    """What was said on these channels since one asked last, in order."""
    with psycopg.connect(url, autocommit=True) as connection:
        for channel in channels:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

        def heard() -> list[tuple[str, str]]:
            # What was sent before, by whomever, comes before what this connection sends itself.
            connection.execute("SELECT pg_notify(%s, 'asked')", [channels[0]])
            told: list[tuple[str, str]] = []
            with closing(connection.notifies(timeout=10)) as notifications:
                for one in notifications:
                    if one.payload == "asked":
                        return told
                    told.append((one.channel, one.payload))
            raise AssertionError("the connection doesn't hear itself")

        yield heard


def test_queued_job_is_cancelled_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            job_id = await submit_one(database, owner)
            job = await cancel(database, job_id, owner, KEY)
            assert job is not None
            assert (job.state, job.error_category, job.attempt) == ("cancelled", "job-cancelled", 0)
            assert job.finished_at is not None
            assert await queue(database) == []
            assert await Runner(database).claim() == []
            assert (await story(database, job_id))[1:] == [("cancelled", 0, KEY, "cancelled while it waited")]
            await check_ledger(database)

    asyncio.run(scenario())


def test_running_job_is_cancelled_when_its_execution_has_ended(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            job_id = await submit_one(database, owner)
            claimed = await runner.claim_one()
            with listening(database_url, of_runner(runner)) as heard:
                job = await cancel(database, job_id, owner, KEY)
                assert job is not None
                assert (job.state, job.finished_at) == ("cancel_requested", None)
                assert heard() == [(of_runner(runner), job_id)]
                # Progress of what shall stop isn't worth telling.
                report = Report(job_id, claimed.token, claimed.attempt, 0.5, "half")
                await execution.progress(database, [report])
                assert (await row(database, job_id))["progress"] is None
                assert await runner.end(claimed) == "cancelled"
            assert [event[:3] for event in await story(database, job_id)][2:] == [
                ("cancel_requested", 1, KEY),
                ("cancelled", 1, runner.actor),
            ]
            assert await reading.result(database, job_id, owner) is None
            await check_ledger(database)

    asyncio.run(scenario())


def test_repeated_cancel_changes_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            waiting = await submit_one(database, owner)
            running = await submit_one(database, owner, function="other")
            await runner.claim_one(function="other")
            for job_id in (waiting, running):
                first = await cancel(database, job_id, owner, KEY)
                with listening(database_url, of_runner(runner)) as heard:
                    assert await cancel(database, job_id, owner, "key:other") == first
                    assert await cancel(database, job_id, None, "operator:o") == first
                    assert heard() == []
            await check_ledger(database)

    asyncio.run(scenario())


def test_final_job_stays_as_it_is(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            succeeded = await submit_one(database, owner)
            await runner.end(await runner.claim_one())
            failed = await submit_one(database, owner)
            await runner.end(await runner.claim_one(), "failed")
            expired = await submit_one(database, owner, queue_s=1.0)
            await elapse(database, 1, expired)
            await settling.settle(database, "gateway:g")
            for job_id, expected in ((succeeded, "succeeded"), (failed, "failed"), (expired, "expired")):
                before = await row(database, job_id)
                job = await cancel(database, job_id, owner, KEY)
                assert job is not None
                assert job.state == expected
                assert await row(database, job_id) == before

    asyncio.run(scenario())


def test_job_of_another_owner_is_unknown_but_not_to_an_operator(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, other, runner = await make_owner(database), await make_owner(database), Runner(database)
            running = await submit_one(database, owner, function="other")
            await runner.claim_one(function="other")
            waiting = await submit_one(database, owner)
            for job_id in (running, waiting):
                before = await row(database, job_id)
                assert await cancel(database, job_id, other, KEY) is None
                assert await row(database, job_id) == before
            assert await cancel(database, str(uuid.uuid4()), owner, KEY) is None
            assert await cancel(database, str(uuid.uuid4()), None, "operator:o") is None
            job = await cancel(database, waiting, None, "operator:o")
            assert job is not None
            assert job.state == "cancelled"
            assert (await story(database, waiting))[-1][2] == "operator:o"
            job = await cancel(database, running, None, "operator:o")
            assert job is not None
            assert job.state == "cancel_requested"

    asyncio.run(scenario())


async def waited_for(database: Database, owner: str, *, follow: bool) -> tuple[str, str]:
    """A job, and the channel of a gateway that waits for it."""
    gateway = str(uuid.uuid4())
    job = new_job(owner, waiter=None if follow else gateway)
    await submit(database, [job])
    if follow:
        await reading.watch(database, job.job_id, gateway, follow=True)
    return job.job_id, of_gateway(gateway)


@pytest.mark.parametrize("follow", [False, True], ids=["waiter", "follower"])
def test_who_waits_is_told(database_url: str, follow: bool) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            job_id, channel = await waited_for(database, owner, follow=follow)
            with listening(database_url, channel) as heard:
                await cancel(database, job_id, owner, KEY)
                assert heard() == [(channel, job_id)]
            job_id, channel = await waited_for(database, owner, follow=follow)
            claimed = await runner.claim_one()
            with listening(database_url, channel, of_runner(runner)) as heard:
                await cancel(database, job_id, owner, KEY)
                assert heard() == [(of_runner(runner), job_id), *[(channel, job_id)] * follow]
                await runner.end(claimed)
                assert heard() == [(channel, job_id)]
                await cancel(database, job_id, owner, KEY)
                await runner.end(claimed)
                assert heard() == []

    asyncio.run(scenario())


@pytest.mark.parametrize("follow", [False, True], ids=["waiter", "follower"])
def test_follower_is_told_of_each_step_and_a_waiter_only_of_the_end(database_url: str, follow: bool) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            job_id, channel = await waited_for(database, owner, follow=follow)
            other = str(uuid.uuid4())
            step = [(channel, job_id)] if follow else []
            with listening(database_url, channel, of_gateway(other)) as heard:
                claimed = await runner.claim_one()
                assert heard() == step
                report = Report(job_id, claimed.token, claimed.attempt, 0.5, "half")
                await execution.progress(database, [report])
                assert heard() == step
                await execution.progress(database, [report._replace(token=str(uuid.uuid4()))])
                await runner.renew(claimed)
                assert heard() == []
                await runner.end(claimed, "returned")
                assert heard() == step
                claimed = await runner.claim_one()
                assert heard() == step
                await reading.watch(database, job_id, other, follow=False)
                await runner.end(claimed)
                assert sorted(heard()) == sorted([(channel, job_id), (of_gateway(other), job_id)])

    asyncio.run(scenario())


def test_runners_of_the_lane_hear_of_new_entries(database_url: str) -> None:
    channel = f"procrastinate_queue_v1#{LANE}"

    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            with listening(database_url, channel) as heard:
                await submit_one(database, owner, function="other")
                assert heard() == []
                await submit_one(database, owner)
                assert len(heard()) == 1
                claimed = await runner.claim_one()
                assert heard() == []
                await runner.end(claimed, "returned")
                assert len(heard()) == 1

    asyncio.run(scenario())


def test_cancel_of_an_overdue_job_leaves_it_final(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            job_id = await submit_one(database, owner, total_s=60.0)
            await runner.claim_one()
            await elapse(database, 60)
            job = await cancel(database, job_id, owner, KEY)
            assert job is not None
            assert job.state == "cancelled"
            assert await state(database, job_id) == "cancelled"
            await check_ledger(database)

    asyncio.run(scenario())


def test_runner_is_told_of_a_deadline_that_passed(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job_id, channel = await waited_for(database, await make_owner(database), follow=False)
            await runner.claim_one()
            await elapse(database, 600)
            with listening(database_url, channel, of_runner(runner)) as heard:
                await settling.settle(database, "gateway:g")
                assert sorted(heard()) == sorted([(of_runner(runner), job_id), (channel, job_id)])
            assert await state(database, job_id) == "failed"

    asyncio.run(scenario())
