"""Submissions that are repeated: by their jobs' ids, and by idempotency keys."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
import pytest
from harness.ledger import (
    Runner,
    check_ledger,
    elapse,
    make_owner,
    new_job,
    opened,
    story,
    submit_many,
    submit_one,
    until_blocked,
)

from headrace.database import Database
from headrace.ledger.submission import submit

T = TypeVar("T")


async def while_locked(
    database: Database, url: str, table: str, commands: Callable[[], list[Awaitable[T]]]
) -> list[T]:
    """What commands return that all wait for one table at first."""
    async with await psycopg.AsyncConnection.connect(url) as blocker:
        await blocker.execute(psycopg.sql.SQL("LOCK TABLE {}").format(psycopg.sql.Identifier(table)))
        tasks = [asyncio.ensure_future(command) for command in commands()]
        await until_blocked(database, len(tasks))
        await blocker.rollback()
        return list(await asyncio.gather(*tasks))


def test_submission_whose_reply_was_lost_is_answered_as_it_stands(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            jobs = [new_job(owner, idempotency_key=key, most_outstanding=4) for key in ("k", None, None)]
            first = await submit(database, jobs)
            runner = Runner(database)
            running = await runner.claim_one()
            stories = [await story(database, job.job_id) for job in jobs]
            fourth, fifth = new_job(owner, most_outstanding=4), new_job(owner, most_outstanding=4)
            again = await submit(database, [fourth, *jobs[::-1], fifth])
            assert [one.outcome for one in again] == ["accepted", *["replayed"] * 3, "quota-exceeded"]
            assert [one.state for one in again] == ["queued", "queued", "queued", "running", None]
            assert [one.created_at for one in again[1:4]] == [one.created_at for one in first[::-1]]
            assert [await story(database, job.job_id) for job in jobs] == stories
            await runner.end(running)
            assert (await submit(database, jobs))[0].state == "succeeded"
            assert len(await check_ledger(database)) == 4

    asyncio.run(scenario())


@pytest.mark.parametrize("key", [None, "k"], ids=["without key", "with key"])
def test_submission_that_is_repeated_while_it_is_under_way(database_url: str, key: str | None) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, other = await make_owner(database), await make_owner(database)
            jobs = [new_job(owner, idempotency_key=key, most_outstanding=3)]
            jobs += [new_job(other, function=f"f{n % 3}") for n in range(20)]
            extra = new_job(owner)
            both = await while_locked(
                database,
                database_url,
                "procrastinate_jobs",
                lambda: [submit(database, jobs), submit(database, [*jobs[::-1], extra])],
            )
            assert Counter(one.outcome for one in both[0] + both[1][:-1]) == {"accepted": 21, "replayed": 21}
            assert both[1][-1].outcome == "accepted"
            assert len(await check_ledger(database)) == 22

    asyncio.run(scenario())


def test_key_stands_for_one_job_of_its_owner_and_function(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, other = await make_owner(database), await make_owner(database)
            job_id = await submit_one(database, owner, idempotency_key="k", input=b"1")
            (replay,) = await submit(database, [new_job(owner, idempotency_key="k", input=b"1")])
            assert (replay.job_id, replay.outcome, replay.state) == (job_id, "replayed", "queued")
            assert replay.deadline_at is not None
            (conflict,) = await submit(database, [new_job(owner, idempotency_key="k", input=b"2")])
            assert (conflict.job_id, conflict.outcome) == (job_id, "key-conflict")
            assert (conflict.state, conflict.created_at) == (None, None)
            for elsewhere in (
                new_job(other, idempotency_key="k"),
                new_job(owner, idempotency_key="k", function="other"),
                new_job(owner, idempotency_key="K"),
                new_job(owner),
            ):
                (receipt,) = await submit(database, [elsewhere])
                assert (receipt.outcome, receipt.job_id) == ("accepted", elsewhere.job_id)
            runner = Runner(database)
            await runner.end(await runner.claim_one())
            (replay,) = await submit(database, [new_job(owner, idempotency_key="k", input=b"1")])
            assert (replay.job_id, replay.outcome, replay.state) == (job_id, "replayed", "succeeded")
            assert len(await check_ledger(database)) == 5

    asyncio.run(scenario())


def test_first_of_a_key_in_a_batch_stands_for_the_others(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            inputs = (b"1", b"1", b"2", b"1")
            jobs = [
                new_job(owner, idempotency_key="k", input=body, most_outstanding=2, most_waiting=2)
                for body in inputs
            ]
            receipts = await submit(database, [*jobs, new_job(owner, most_outstanding=2)])
            assert [one.outcome for one in receipts] == [
                "accepted",
                "replayed",
                "key-conflict",
                "replayed",
                "accepted",
            ]
            assert {one.job_id for one in receipts[:4]} == {jobs[0].job_id}
            assert [one.state for one in receipts] == ["queued", "queued", None, "queued", "queued"]
            assert len(await check_ledger(database)) == 2

    asyncio.run(scenario())


def test_key_is_free_again_once_it_has_expired(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            first = new_job(owner, idempotency_key="k")
            await submit(database, [first], key_ttl_s=100)
            await elapse(database, 99)
            assert (await submit(database, [new_job(owner, idempotency_key="k")]))[0].outcome == "replayed"
            await elapse(database, 1)
            refused = new_job(owner, idempotency_key="k", most_waiting=1)
            assert (await submit(database, [refused]))[0].outcome == "backlog-full"
            second = new_job(owner, idempotency_key="k", input=b"other")
            (receipt,) = await submit(database, [second], key_ttl_s=100)
            assert (receipt.outcome, receipt.job_id) == ("accepted", second.job_id)
            (receipt,) = await submit(database, [new_job(owner, idempotency_key="k", input=b"other")])
            assert (receipt.outcome, receipt.job_id) == ("replayed", second.job_id)
            # By its id, the first one is still there.
            assert (await submit(database, [first]))[0].job_id == first.job_id

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("bound", "refusal"), [("most_outstanding", "quota-exceeded"), ("most_waiting", "backlog-full")]
)
def test_refusal_is_not_remembered_and_nothing_stands_for_its_key(
    database_url: str, bound: str, refusal: str
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_one(database, owner)
            jobs = [
                new_job(owner, idempotency_key="k", input=body, **{bound: 1}) for body in (b"1", b"1", b"2")
            ]
            receipts = await submit(database, jobs)
            assert [(one.outcome, one.job_id, one.state) for one in receipts] == [
                (refusal, job.job_id, None) for job in jobs
            ]
            assert await database.fetch("SELECT FROM idempotency") == []
            assert (await submit(database, [new_job(owner, idempotency_key="k")]))[0].outcome == "accepted"
            assert len(await check_ledger(database)) == 2

    asyncio.run(scenario())


def test_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(database_url: str) -> None:
    keys = [f"k{number}" for number in range(40)]

    async def scenario() -> None:
        async with opened(database_url, 8) as database:
            owners = [await make_owner(database) for _ in range(2)]
            for turn in range(5):
                batches = [
                    [
                        new_job(owners[n % 2], function=f"f{n % 3}", idempotency_key=f"{turn}{key}")
                        for n, key in enumerate(keys)
                    ][::direction]
                    for direction in (1, -1, 1, -1)
                ]
                answers = await while_locked(
                    database,
                    database_url,
                    "idempotency",
                    lambda: [submit(database, batch) for batch in batches],  # noqa: B023 - called here
                )
                outcomes = Counter(one.outcome for answer in answers for one in answer)
                assert outcomes == {"accepted": 40, "replayed": 120}
                assert len({one.job_id for answer in answers for one in answer}) == 40
            assert len(await check_ledger(database)) == 200

    asyncio.run(scenario())


def test_batches_of_many_lanes_and_owners_in_opposite_order_do_not_deadlock(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, 8) as database:
            owners = [await make_owner(database) for _ in range(5)]
            batches = [
                [new_job(owners[n % 5], function=f"f{n % 7}") for n in range(35)][::direction]
                for direction in (1, -1) * 3
            ]
            answers = await while_locked(
                database, database_url, "lane", lambda: [submit(database, batch) for batch in batches]
            )
            assert {one.outcome for answer in answers for one in answer} == {"accepted"}
            assert len(await check_ledger(database)) == 210

    asyncio.run(scenario())


def test_claims_go_on_while_submissions_are_under_way(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_many(database, await make_owner(database), 3, cost=5.0)
            newcomer = await make_owner(database)
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute(
                    "INSERT INTO lane_owner (lane, owner_id, weight, last_tag) VALUES ('fish', %s, 1, 1)",
                    [newcomer],
                )
                assert len(await Runner(database).claim(2)) == 2
                # Also the lane's virtual time moves, which a newcomer's tag is taken from.
                assert await database.fetch("SELECT virtual_time FROM lane") == [{"virtual_time": 5.0}]
                await other.rollback()

    asyncio.run(scenario())


def test_same_key_at_the_same_time_makes_one_job(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, 8) as database:
            owner = await make_owner(database)
            answers = await while_locked(
                database,
                database_url,
                "idempotency",
                lambda: [
                    submit(database, [new_job(owner, idempotency_key="k", input=str(n % 2).encode())])
                    for n in range(6)
                ],
            )
            outcomes = Counter(answer[0].outcome for answer in answers)
            assert outcomes == {"accepted": 1, "replayed": 2, "key-conflict": 3}
            assert len({answer[0].job_id for answer in answers}) == 1
            assert len(await check_ledger(database)) == 1
            assert uuid.UUID(answers[0][0].job_id)

    asyncio.run(scenario())
