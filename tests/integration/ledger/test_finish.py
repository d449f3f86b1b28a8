"""How a start ends, as its runner reports it: once, and for a job that is still its own."""

from __future__ import annotations

import asyncio
import uuid

import msgspec
import pytest
from harness.ledger import (
    Runner,
    check_ledger,
    elapse,
    make_owner,
    opened,
    outcome,
    row,
    started,
    state,
    story,
    submit_many,
    submit_one,
)

from headrace.domain import State
from headrace.ledger import cancelling, execution, reading, settling
from headrace.ledger.execution import Kind, Report

KINDS: list[Kind] = ["succeeded", "failed", "retry", "lost", "displaced", "returned"]


def test_success(database_url: str) -> None:
    output = b'{"z": "\\u0000", "a": 1.0}\xff\x00'

    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner)
            states = await runner.finish(outcome(job, output=output, execution_s=1.5), result_ttl_s=100.0)
            assert states == {job.job_id: "succeeded"}
            kept = await row(database, job.job_id)
            assert (kept["result"], kept["result_place"], kept["execution_s"]) == (output, "row", 1.5)
            assert (kept["result_expires_at"] - kept["finished_at"]).total_seconds() == 100
            assert (kept["error_category"], kept["settle_at"], kept["session_id"]) == (None, None, None)
            assert (await story(database, job.job_id))[-1] == (
                "succeeded",
                1,
                runner.actor,
                "the function returned",
            )
            await check_ledger(database)

    asyncio.run(scenario())


def test_failure(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner, attempts=5)
            ended = await runner.end(
                job,
                "failed",
                category="invalid-input",
                message="the moon",
                errors=(("/phase", "the moon"), ("", "all")),
                execution_s=0.25,
            )
            assert ended == "failed"
            found = await reading.find(database, job.job_id, None)
            assert found is not None
            assert (found.error_category, found.error_message) == ("invalid-input", "the moon")
            assert found.error_errors == [
                {"path": "/phase", "message": "the moon"},
                {"path": "", "message": "all"},
            ]
            assert (found.execution_s, found.result_size, found.result_expired) == (0.25, None, None)
            assert (await story(database, job.job_id))[-1][3] == "the execution failed"
            assert await runner.claim() == []
            await check_ledger(database)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "charged", "waits", "reason"),
    [
        ("retry", 1, True, "the execution failed for now"),
        ("lost", 1, True, "its process was lost"),
        ("displaced", 0, False, "its process was killed for another call"),
        ("returned", 0, False, "given back by its runner"),
    ],
)
def test_start_that_came_to_nothing(
    database_url: str, kind: Kind, charged: int, waits: bool, reason: str
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner)
            await execution.progress(database, [Report(job.job_id, job.token, job.attempt, 0.5, "half")])
            assert await runner.end(job, kind, execution_s=2.0) == "queued"
            kept = await row(database, job.job_id)
            assert (kept["attempt"], kept["charged"], kept["execution_s"]) == (1, charged, 2.0)
            assert (kept["token"], kept["session_id"], kept["claim_id"]) == (None, None, None)
            assert (kept["progress"], kept["progress_message"]) == (None, "")
            assert (kept["error_category"], kept["settle_at"]) == (None, kept["deadline_at"])
            assert (kept["due_at"] is not None) == waits
            assert (await story(database, job.job_id))[-1] == ("queued", 1, runner.actor, reason)
            await check_ledger(database)
            await elapse(database, 1)
            assert (await Runner(database).claim_one()).attempt == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "reason"), [("retry", "the execution failed for now"), ("lost", "its process was lost")]
)
@pytest.mark.parametrize(
    ("attempts", "starts"),
    [(1, "The one start that the job was allowed"), (2, "Each of the 2 starts that the job was allowed")],
)
def test_last_start_that_came_to_nothing(
    database_url: str, kind: Kind, reason: str, attempts: int, starts: str
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner, attempts=attempts)
            for _ in range(attempts - 1):
                assert await runner.end(job, kind) == "queued"
                await elapse(database, 1)
                job = await runner.claim_one()
            ended = await runner.end(job, kind, category="worker-lost", message="Gone.")
            assert ended == "failed"
            kept = await row(database, job.job_id)
            assert (kept["error_category"], kept["error_message"]) == (
                "attempts-exhausted",
                f"{starts} came to nothing. The last one: Gone.",
            )
            assert (kept["attempt"], kept["charged"]) == (attempts, attempts)
            assert (await story(database, job.job_id))[-1][3] == f"{reason} (worker-lost)"
            await check_ledger(database)

    asyncio.run(scenario())


def test_pauses_before_retries_double(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            await submit_one(database, await make_owner(database), attempts=2000, total_s=1e6)
            for turn in range(12):
                job = await runner.claim_one()
                await runner.end(job, "retry")
                ended = (await reading.events(database, job.job_id))[-1].at
                pause = ((await row(database, job.job_id))["due_at"] - ended).total_seconds()
                longest = min(60, 0.5 * 2**turn)
                assert 0.5 * longest <= pause <= 1.5 * longest
                await elapse(database, 91)
            pauses = await database.fetch(
                "SELECT backoff_v1(n) AS s FROM unnest(ARRAY[0, 1, 1100, 2000]) AS n"
            )
            assert all(0.25 <= pause["s"] <= 90 for pause in pauses)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "left"), [("retry", 0.2), ("lost", 0.2), ("displaced", -1.0), ("returned", -1.0)]
)
def test_deadline_that_leaves_no_time_for_another_start(database_url: str, kind: Kind, left: float) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner, total_s=100.0, attempts=9)
            await elapse(database, 100 - left)
            assert await runner.end(job, kind) == "failed"
            kept = await row(database, job.job_id)
            assert kept["error_category"] == "deadline-exceeded"
            assert (await story(database, job.job_id))[-1][0] == "failed"
            await check_ledger(database)

    asyncio.run(scenario())


def test_finish_is_fenced_by_token_attempt_and_state(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner)
            before = await row(database, job.job_id)
            for kind in KINDS:
                for changes in ({"token": str(uuid.uuid4())}, {"attempt": 2}, {"job_id": str(uuid.uuid4())}):
                    fenced = msgspec.structs.replace(outcome(job, kind), **changes)
                    assert await runner.finish(fenced) == {}
            assert await row(database, job.job_id) == before
            await elapse(database, 31)
            await settling.settle(database, "gateway:g")
            before = await row(database, job.job_id)
            assert before["state"] == "queued"
            for kind in KINDS:
                assert await runner.end(job, kind) is None
            assert await row(database, job.job_id) == before
            await elapse(database, 1)
            again = await Runner(database).claim_one()
            for kind in KINDS:
                assert await runner.end(job, kind) is None
            assert await state(database, again.job_id) == "running"

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_finish_is_answered_as_at_first_where_the_job_has_ended(
    database_url: str, kind: Kind
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner)
            first = await runner.end(job, kind)
            before = await row(database, job.job_id)
            for again in (kind, "succeeded", "failed"):
                assert await runner.end(job, again) == first
            assert await Runner(database).end(job, kind) is None
            assert await row(database, job.job_id) == before

    asyncio.run(scenario())


def test_what_somebody_else_ended_is_not_the_runners(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner, total_s=60.0)
            await elapse(database, 60)
            await settling.settle(database, "gateway:g")
            assert await state(database, job.job_id) == "failed"
            assert await runner.end(job) is None
            assert (await row(database, job.job_id))["result"] is None

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_job_whose_cancel_was_requested_ends_as_cancelled(database_url: str, kind: Kind) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner, attempts=5)
            await cancelling.cancel(database, job.job_id, None, "operator:o")
            for _ in range(2):
                assert await runner.end(job, kind, execution_s=3.0) == "cancelled"
            kept = await row(database, job.job_id)
            assert (kept["error_category"], kept["result"]) == ("job-cancelled", None)
            assert kept["execution_s"] == 3
            assert await runner.claim() == []
            await check_ledger(database)

    asyncio.run(scenario())


def test_batch_of_all_kinds(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            owner = await make_owner(database)
            await submit_many(database, owner, 14)
            jobs = await runner.claim(14)
            await cancelling.cancel(database, jobs[12].job_id, owner, "key:k")
            await runner.end(jobs[13])
            outcomes = [outcome(job, KINDS[n % 6], execution_s=float(n)) for n, job in enumerate(jobs)]
            states = await runner.finish(*outcomes[::-1])
            expected: list[State] = ["succeeded", "failed", *["queued"] * 4] * 2 + ["cancelled", "succeeded"]
            assert [states[job.job_id] for job in jobs] == expected
            assert [await state(database, job.job_id) for job in jobs] == expected
            assert await runner.finish() == {}
            await check_ledger(database)

    asyncio.run(scenario())


def test_text_that_postgres_cannot_hold(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner)
            odd = "a\x00b\ud800c\U0001f41f\\u0000"
            await execution.progress(database, [Report(job.job_id, job.token, job.attempt, 0.5, odd)])
            readable = "a\N{REPLACEMENT CHARACTER}b?c\U0001f41f\\u0000"
            found = await reading.find(database, job.job_id, None)
            assert found is not None
            assert found.progress_message == readable
            ended = await runner.end(job, "failed", category="broken", message=odd, errors=((odd, odd),))
            assert ended == "failed"
            found = await reading.find(database, job.job_id, None)
            assert found is not None
            assert found.error_message == readable
            assert found.error_errors == [{"path": readable, "message": readable}]

    asyncio.run(scenario())


def test_a_result_after_the_deadline_is_worthless(database_url: str) -> None:
    """Also before maintenance has looked: what becomes of a job doesn't hang on when it does."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner, total_s=60.0)
            await elapse(database, 60)
            assert await runner.end(job, "succeeded") == "failed"
            ended = await row(database, job.job_id)
            assert (ended["error_category"], ended["result"]) == ("deadline-exceeded", None)

    asyncio.run(scenario())


def test_words_are_bounded(database_url: str) -> None:
    """Some functions quote their whole input in an error."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job = await started(database, runner)
            long = "m" * 100_000
            errors = tuple((long, long) for _ in range(1_000))
            assert await runner.end(job, "failed", category="c", message=long, errors=errors) == "failed"
            ended = await row(database, job.job_id)
            assert len(ended["error_message"]) == len(ended["error_errors"][0]["path"]) == 4096
            assert len(ended["error_errors"]) == 100

    asyncio.run(scenario())
