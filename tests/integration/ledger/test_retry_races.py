"""A retry, and another retry or a prune, at the same time; and whose retries are accepted at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.ledger import (
    check_ledger,
    make_owner,
    new_job,
    opened,
    row,
    submit_one,
)
from harness.ledger_races import race
from harness.ledger_states import Placed, placed

from headrace.database import Database
from headrace.ids import uuid7
from headrace.ledger import retention
from headrace.ledger.submission import NewJob, Receipt, submit


def again(made: Placed, **changes: Any) -> NewJob:
    return new_job(made.job.owner_id, retry_of=made.job.job_id, **changes)


def submitting(job: NewJob) -> Callable[[Database], Awaitable[Receipt]]:
    async def give(database: Database) -> Receipt:
        return (await submit(database, [job]))[0]

    return give


@pytest.mark.parametrize("undone", [False, True], ids=["committed", "undone"])
def test_retry_and_retry_at_the_same_time(database_url: str, undone: bool) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "failed")
            one, other = again(made), again(made)
            receipts = await race(database, submitting(one), submitting(other), undone=undone)
            assert receipts[0].outcome == "accepted"
            expected = ("accepted", other.job_id) if undone else ("replayed", one.job_id)
            assert (receipts[1].outcome, receipts[1].job_id, receipts[1].state) == (*expected, "queued")
            kept = await row(database, made.job.job_id)
            assert str(kept["retried_as"]) == expected[1]
            assert len(await check_ledger(database)) == 2

    asyncio.run(scenario())


def test_refused_retry_may_be_asked_for_again(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "failed")
            await submit_one(database, made.job.owner_id)
            refused, other = again(made, most_waiting=1), again(made, most_waiting=1)
            receipts = await submit(database, [refused, other])
            assert [one.outcome for one in receipts] == ["backlog-full"] * 2
            assert [one.job_id for one in receipts] == [refused.job_id, other.job_id]
            assert (await row(database, made.job.job_id))["retried_as"] is None
            assert (await submitting(again(made))(database)).outcome == "accepted"

    asyncio.run(scenario())


def test_retry_is_its_owners_and_needs_no_key(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "failed")
            stranger = new_job(await make_owner(database), retry_of=made.job.job_id)
            assert (await submitting(stranger)(database)).outcome == "not-retryable"
            # The key stands for the job that failed, and goes on to do so.
            keyed = again(made, idempotency_key=made.job.idempotency_key)
            assert (await submitting(keyed)(database)).outcome == "accepted"
            replay = await submitting(again(made, idempotency_key="another"))(database)
            assert (replay.outcome, replay.job_id) == ("replayed", keyed.job_id)
            by_key = await submitting(new_job(made.job.owner_id, idempotency_key="k"))(database)
            assert (by_key.outcome, by_key.job_id) == ("replayed", made.job.job_id)
            assert len(await database.fetch("SELECT FROM idempotency")) == 1
            # A retry that fails may be done again too.
            assert await made.runner.end(await made.runner.claim_one(), "failed") == "failed"
            third = new_job(made.job.owner_id, retry_of=keyed.job_id)
            assert (await submitting(third)(database)).outcome == "accepted"
            await check_ledger(database)

    asyncio.run(scenario())


def forgotten(database: Database) -> Awaitable[int]:
    return retention.prune_jobs(database, 0, 9)


@pytest.mark.parametrize("undone", [False, True], ids=["committed", "undone"])
def test_prune_and_then_retry(database_url: str, undone: bool) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "failed", idempotency_key=None)
            pruned, receipt = await race(database, forgotten, submitting(again(made)), undone=undone)
            assert pruned == 1
            assert receipt.outcome == ("accepted" if undone else "not-retryable")
            assert len(await check_ledger(database)) == (2 if undone else 0)

    asyncio.run(scenario())


def test_retry_and_then_prune(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "failed", idempotency_key=None)
            receipt, pruned = await race(database, submitting(again(made)), forgotten, waits=False)
            assert (receipt.outcome, pruned) == ("accepted", 0)
            assert await forgotten(database) == 1
            jobs = await check_ledger(database)
            assert jobs.keys() == {receipt.job_id}
            assert jobs[receipt.job_id]["retry_of"] == made.job.job_id
            # Who asks once more is told that there is nothing to do again.
            late = new_job(made.job.owner_id, job_id=uuid7(), retry_of=made.job.job_id)
            assert (await submitting(late)(database)).outcome == "not-retryable"

    asyncio.run(scenario())
