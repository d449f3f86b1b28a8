"""Jobs that are done again, once, by a new job."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import Any

import pytest
from harness.ledger import (
    Runner,
    check_ledger,
    elapse,
    make_owner,
    opened,
    row,
    state,
    story,
    submit_one,
)
from harness.postgres import query

from headrace.database import Database
from headrace.domain import State
from headrace.ledger import reading, retrying, settling
from headrace.ledger.cancelling import cancel
from headrace.ledger.retrying import Bounds, Original
from headrace.ledger.submission import Receipt, submit

KEY = "key:k"
BOUNDS = Bounds(most_outstanding=1000, most_waiting=1000)


async def ended(database: Database, owner: str, how: State, **changes: Any) -> str:
    """A job that ended so."""
    runner = Runner(database)
    job_id = await submit_one(database, owner, queue_s=60.0, **changes)
    if how == "expired":
        await elapse(database, 60, job_id)
        await settling.settle(database, "gateway:g")
    elif how == "cancelled":
        await cancel(database, job_id, owner, KEY)
    else:
        await runner.end(await runner.claim_one(), "succeeded" if how == "succeeded" else "failed")
    assert await state(database, job_id) == how
    return job_id


async def known(database: Database, job_id: str, owner: str | None = None) -> Original:
    found = await retrying.original(database, job_id, owner, "reader")
    assert found is not None
    return found


async def again(database: Database, job_id: str, bounds: Bounds = BOUNDS) -> Receipt:
    old = await known(database, job_id)
    (receipt,) = await submit(database, [old.again(bounds, actor=KEY)])
    return receipt


@pytest.mark.parametrize("how", ["failed", "expired", "cancelled"])
def test_what_ended_without_a_result_is_done_again_as_it_was(database_url: str, how: State) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            job_id = await ended(
                database, owner, how, input=b'{"n": 1}', cost=7.0, weight=4.0, attempts=3, total_s=90.0,
                request_id="r", idempotency_key="k",
            )  # fmt: skip
            receipt = await again(database, job_id)
            assert (receipt.outcome, receipt.state) == ("accepted", "queued")
            old, new = await row(database, job_id), await row(database, receipt.job_id)
            for name in (
                "owner_id",
                "function",
                "interface",
                "input",
                "digest",
                "cost",
                "weight",
                "attempts",
            ):
                assert new[name] == old[name]
            for deadline in ("queue_deadline_at", "deadline_at"):
                was, now = (one[deadline] - one["created_at"] for one in (old, new))
                assert abs((was - now).total_seconds()) < 0.001
            assert (str(new["retry_of"]), str(old["retried_as"])) == (job_id, receipt.job_id)
            assert (new["attempt"], new["charged"], new["idempotency_key"]) == (0, 0, None)
            assert await story(database, receipt.job_id) == [("queued", 0, KEY, f"does job {job_id} again")]
            assert query(database_url, "SELECT actor, action, detail FROM audit WHERE subject = %s", job_id)[
                -1
            ] == (KEY, "job.retry", {"job_id": receipt.job_id})
            job = await reading.find(database, receipt.job_id, owner)
            assert job is not None
            assert (job.retry_of, job.retried_as) == (job_id, None)
            await check_ledger(database)

    asyncio.run(scenario())


def test_it_is_done_again_once_whoever_asks(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, connections=8) as database:
            job_id = await ended(database, await make_owner(database), "failed")
            old = await known(database, job_id)  # all have read it before any of them submits
            receipts = await asyncio.gather(
                *(submit(database, [old.again(BOUNDS, actor=f"key:{n}")]) for n in range(8))
            )
            assert Counter(receipt.outcome for (receipt,) in receipts) == {"accepted": 1, "replayed": 7}
            assert len({receipt.job_id for (receipt,) in receipts}) == 1
            later = await known(database, job_id)
            assert not later.can_be_retried
            assert (later.retried_as, later.input) == (receipts[0][0].job_id, b"")
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_refusal_is_not_remembered(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            job_id = await ended(database, owner, "failed")
            await submit_one(database, owner)
            for bounds, outcome in (
                (Bounds(most_outstanding=1, most_waiting=9), "quota-exceeded"),
                (Bounds(most_outstanding=9, most_waiting=1), "backlog-full"),
                (Bounds(most_outstanding=9, most_waiting=9, most_cost=1), "backlog-costly"),
            ):
                assert (await again(database, job_id, bounds)).outcome == outcome
                assert (await known(database, job_id)).can_be_retried
            assert (await again(database, job_id)).outcome == "accepted"

    asyncio.run(scenario())


def test_what_may_still_succeed_or_has_cannot_be_done_again(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            succeeded = await ended(database, owner, "succeeded")
            running = await submit_one(database, owner)
            await runner.claim_one()
            waiting = await submit_one(database, owner)
            for job_id in (succeeded, running, waiting):
                assert not (await known(database, job_id)).can_be_retried
                assert (await again(database, job_id)).outcome == "not-retryable"
            await check_ledger(database)

    asyncio.run(scenario())


def test_an_overdue_job_is_settled_before_it_is_looked_at(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            job_id = await submit_one(database, await make_owner(database), queue_s=60.0)
            await elapse(database, 60)
            assert (await known(database, job_id)).state == "expired"

    asyncio.run(scenario())


def test_a_job_of_another_owner_is_unknown(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, other = await make_owner(database), await make_owner(database)
            job_id = await ended(database, owner, "failed")
            assert await retrying.original(database, job_id, other, "reader") is None
            assert await retrying.original(database, str(uuid.uuid4()), None, "reader") is None
            assert (await known(database, job_id, owner)).job_id == job_id

    asyncio.run(scenario())


def test_dead_letters_are_those_that_were_not_done_again(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            for how in ("succeeded", "cancelled"):
                await ended(database, owner, how)
            failed = await ended(database, owner, "failed")
            expired = await ended(database, owner, "expired")
            retried = await ended(database, owner, "failed")
            await again(database, retried)
            await ended(database, await make_owner(database), "failed")
            dead = await reading.list_jobs(database, owner, dead=True)
            assert [job.job_id for job in dead] == [expired, failed]
            assert [job.job_id for job in await reading.list_jobs(database, owner, category="broken")] == [
                retried, failed
            ]  # fmt: skip
            (only,) = await reading.list_jobs(database, owner, dead=True, category="broken")
            assert only.job_id == failed

    asyncio.run(scenario())
