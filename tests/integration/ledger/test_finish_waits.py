"""The pause before a job's next start, where a start says for how long others would come to nothing."""

from __future__ import annotations

import asyncio
import time

from harness.ledger import LANE, Runner, check_ledger, elapse, opened, row, started, story

from headrace.ledger import execution


def test_start_that_says_for_how_long_others_would_fail_too(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, wait_s = Runner(database), 40.0
            job = await started(database, runner, total_s=600.0)
            assert await runner.end(job, "retry", not_before=time.monotonic() + wait_s) == "queued"
            kept = await row(database, job.job_id)
            assert (kept["state"], kept["queued_at"]) == ("queued", kept["due_at"])
            due_s = await execution.next_due(database, [LANE])
            assert due_s is not None
            assert wait_s - 5 < due_s < wait_s + 1
            await check_ledger(database)
            await elapse(database, wait_s - 10)
            assert await Runner(database).claim() == []  # nor does any other runner get it
            await elapse(database, 11)
            assert (await Runner(database).claim_one()).attempt == 2

    asyncio.run(scenario())


def test_given_back_as_what_it_needs_is_busy_uses_up_no_start(database_url: str) -> None:
    """Nor is a start tried before that is over."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, wait_s = Runner(database), 40.0
            job = await started(database, runner, total_s=600.0, attempts=1)
            for turn in range(1, 6):
                assert await runner.end(job, "returned", not_before=time.monotonic() + wait_s) == "queued"
                kept = await row(database, job.job_id)
                assert (kept["attempt"], kept["attempts"] - kept["charged"]) == (turn, 1)
                due_s = await execution.next_due(database, [LANE])
                assert due_s is not None
                assert wait_s - 5 < due_s < wait_s + 1
                await check_ledger(database)
                await elapse(database, wait_s + 1)
                job = await runner.claim_one()
            for _ in range(3):  # those that aren't charged are left, too
                assert await runner.end(job, "returned") == "queued"
                job = await runner.claim_one()
            assert await runner.end(job, "returned") == "failed"
            assert (await row(database, job.job_id))["error_category"] == "attempts-exhausted"
            await check_ledger(database)

    asyncio.run(scenario())


def test_wait_that_is_over_when_the_outcome_is_recorded_delays_nothing(database_url: str) -> None:
    """As Postgres was away."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner)
            assert await runner.end(job, "retry", not_before=time.monotonic() - 40) == "queued"
            due_s = await execution.next_due(database, [LANE])
            assert due_s is not None
            assert 0 < due_s < 1
            await check_ledger(database)

    asyncio.run(scenario())


def test_wait_beyond_the_deadline_is_not_begun(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner, queue_s=20.0, total_s=30.0)
            assert await runner.end(job, "retry", not_before=time.monotonic() + 40) == "failed"
            kept = await row(database, job.job_id)
            assert (kept["error_category"], kept["error_message"]) == (
                "deadline-exceeded",
                "The deadline left no time for another start.",
            )
            assert (await story(database, job.job_id))[-1][3] == "the execution failed for now"
            await check_ledger(database)

    asyncio.run(scenario())
