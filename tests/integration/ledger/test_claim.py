from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from itertools import chain

import psycopg
from harness.ledger import (
    LANE,
    OFTEN_RETRIED,
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
    submit_many,
    submit_one,
)

from headrace.ledger import cancelling, execution
from headrace.ledger.execution import Lane
from headrace.ledger.submission import submit

DEFER = (
    "INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args, status)"
    " VALUES (%s, %s, 9, %s::jsonb, 'todo')"
)


def test_what_a_claim_brings(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            job_id = await submit_one(
                database, owner, input=b"[1]", total_s=100.0, request_id="r", traceparent="00-t"
            )
            await elapse(database, 10)
            runner = Runner(database, lease_s=30)
            claim_id = str(uuid.uuid4())
            (claimed,) = await runner.claim(5, claim_id=claim_id)
            kept = await row(database, job_id)
            assert (claimed.job_id, claimed.token, claimed.attempt) == (job_id, kept["token"], 1)
            assert (claimed.function, claimed.input, claimed.owner_id) == (LANE, b"[1]", owner)
            assert (claimed.request_id, claimed.traceparent) == ("r", "00-t")
            assert 80 < claimed.remaining_s <= 90
            assert 10 <= claimed.waited_s < 20
            assert (kept["state"], kept["attempt"], kept["charged"]) == ("running", 1, 1)
            assert (kept["session_id"], str(kept["claim_id"])) == (runner.session_id, claim_id)
            assert kept["started_at"] == kept["first_started_at"]
            assert (kept["lease_expires_at"] - kept["started_at"]).total_seconds() == 30
            assert kept["settle_at"] == kept["lease_expires_at"]
            assert await queue(database) == []
            assert (await story(database, job_id))[1:] == [("running", 1, runner.actor, "claimed")]
            assert await runner.claim(5) == []
            await check_ledger(database)

    asyncio.run(scenario())


def test_lease_never_hides_the_deadline(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            job_id = await submit_one(database, await make_owner(database), queue_s=5.0, total_s=5.0)
            await Runner(database, lease_s=30).claim_one()
            kept = await row(database, job_id)
            assert kept["settle_at"] == kept["deadline_at"] < kept["lease_expires_at"]

    asyncio.run(scenario())


def test_never_more_than_are_free_in_a_group_that_lanes_share(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            for lane in ("a", "b", "c", "d"):
                await submit_many(database, owner, 5, function=lane)
            runner = Runner(database)
            lanes = [Lane("a", "i1", 0), Lane("b", "i1", 1), Lane("c", "i1", 0), Lane("d", "i1", 2)]

            async def claimed(*free: int) -> dict[str, int]:
                return dict(Counter(job.function for job in await runner.claim_lanes(lanes, free)))

            assert await claimed(0, 0, 0) == {}
            assert await claimed(3, 1, -1) == {"a": 3, "b": 1}
            assert await claimed(4, 0, 0) == {"a": 2, "c": 2}
            lanes.reverse()
            assert await claimed(9, 9, 0) == {"c": 3, "b": 4}
            assert await runner.claim_lanes([], [5]) == []
            # A group of which nothing was said has no room.
            assert await runner.claim_lanes([Lane("d", "i1", 2)], [5]) == []
            await check_ledger(database)

    asyncio.run(scenario())


def test_order_is_by_tag_then_by_id(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owners = [await make_owner(database) for _ in range(4)]
            jobs = [new_job(owners[n % 4], cost=float(n * 7 % 5)) for n in range(40)]
            await submit(database, jobs)
            tags = {job.job_id: (await row(database, job.job_id))["tag"] for job in jobs}
            runner = Runner(database)
            batches = [[job.job_id for job in await runner.claim(size)] for size in (1, 4, 7, 28)]
            assert [len(batch) for batch in batches] == [1, 4, 7, 28]
            # Within a batch the order means nothing.
            got = [sorted(batch, key=lambda job_id: (tags[job_id], job_id)) for batch in batches]
            assert list(chain(*got)) == sorted(tags, key=lambda job_id: (tags[job_id], job_id))

    asyncio.run(scenario())


def test_only_the_interfaces_that_are_served(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            old = await submit_one(database, owner, interface="old")
            new = await submit_one(database, owner)
            runner = Runner(database)
            assert [job.job_id for job in await runner.claim(9)] == [new]
            both = [Lane(LANE, "i1", 0), Lane(LANE, "old", 0)]
            assert [job.job_id for job in await runner.claim_lanes(both, [9])] == [old]

    asyncio.run(scenario())


def test_retry_waits_until_it_is_due(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            job_id = await submit_one(database, owner, **OFTEN_RETRIED)
            runner = Runner(database)
            assert await execution.next_due(database, [LANE]) is None
            claimed = await runner.claim_one()
            await elapse(database, 100)  # in which it runs
            assert await runner.end(claimed, "retry") == "queued"
            due = await execution.next_due(database, ["other", LANE])
            assert due is not None
            assert 0 < due <= 24
            assert await execution.next_due(database, ["other"]) is None
            assert await runner.claim() == []
            later = await submit_one(database, owner)
            assert (await runner.claim_one()).job_id == later
            await check_ledger(database)
            await elapse(database, 24)
            claimed = await runner.claim_one()
            assert (claimed.job_id, claimed.attempt) == (job_id, 7)
            assert await execution.next_due(database, [LANE]) is None
            kept = await row(database, job_id)
            # Waiting is counted from when it was due.
            assert 0 < kept["waited_s"] < 50
            assert kept["first_started_at"] < kept["started_at"]
            await check_ledger(database)

    asyncio.run(scenario())


def test_overdue_job_is_never_claimed(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            never_started = await submit_one(database, owner, queue_s=10.0)
            await elapse(database, 10)
            runner = Runner(database)
            assert await runner.claim() == []
            restarted = await submit_one(database, owner, queue_s=10.0, total_s=20.0)
            await runner.end(await runner.claim_one(), "returned")
            await elapse(database, 19, restarted)
            # The queue deadline bounds the first start only.
            await runner.end(await runner.claim_one(), "returned")
            await elapse(database, 1, restarted)
            assert await runner.claim() == []
            assert [await state(database, one) for one in (never_started, restarted)] == ["queued"] * 2

    asyncio.run(scenario())


def test_entry_that_somebody_else_took_is_left_alone(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            jobs = await submit_many(database, owner, 7)
            entries = await queue(database)
            statuses = ["doing", "succeeded", "failed", "cancelled", "aborting", "aborted"]
            for entry, status in zip(entries, statuses, strict=False):
                await database.execute(
                    "UPDATE procrastinate_jobs SET status = %s::procrastinate_job_status WHERE id = %s",
                    [status, entry["id"]],
                )
            assert [job.job_id for job in await Runner(database).claim(9)] == jobs[6:]
            assert {await state(database, job_id) for job_id in jobs[:6]} == {"queued"}

    asyncio.run(scenario())


def test_foreign_entries_in_the_queue_do_no_harm(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            job_id = await submit_one(database, owner)
            for task in ("headrace.run", "somebody.else"):
                for args in (
                    "{}",
                    '{"job_id": 3, "v": 1}',
                    '{"job_id": "no uuid"}',
                    '[1, "\\u00e4"]',
                    json.dumps({"job_id": job_id, "v": 1}),
                ):
                    await database.execute(DEFER, [LANE, task, args])
            runner = Runner(database)
            claimed = await runner.claim_one()
            assert claimed.job_id == job_id
            assert await runner.claim() == []
            assert len(await queue(database)) == 10
            assert await runner.end(claimed) == "succeeded"
            assert await submit_one(database, owner) == (await runner.claim_one()).job_id

    asyncio.run(scenario())


def test_many_claimers_never_get_the_same_job(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, 8) as database:
            owner = await make_owner(database)
            jobs = await submit_many(database, owner, 200)

            async def claimer(size: int) -> list[str]:
                runner, got = Runner(database), []
                while claimed := await runner.claim(size):
                    got += [job.job_id for job in claimed]
                return got

            got = list(chain(*await asyncio.gather(*(claimer(size) for size in (1, 2, 3, 5, 8, 13, 2, 1)))))
            # What one claimer skips, as another holds it, that one gets.
            assert sorted(got) == sorted(jobs)
            assert {job["state"] for job in (await check_ledger(database)).values()} == {"running"}
            assert await queue(database) == []

    asyncio.run(scenario())


def test_claim_passes_by_what_others_hold_and_waits_for_nobody(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            jobs = await submit_many(database, await make_owner(database), 3)
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute("SELECT FROM job WHERE id = %s FOR UPDATE", [jobs[0]])
                await other.execute(
                    "SELECT FROM procrastinate_jobs WHERE id = (SELECT entry_id FROM job WHERE id = %s)"
                    " FOR UPDATE",
                    [jobs[1]],
                )
                await other.execute("SELECT FROM lane FOR UPDATE")
                async with asyncio.timeout(5):
                    assert [job.job_id for job in await Runner(database).claim(3)] == jobs[2:]
            assert len(await Runner(database).claim(3)) == 2

    asyncio.run(scenario())


def test_claim_against_cancel(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, 6) as database:
            owner = await make_owner(database)
            ended: Counter[str] = Counter()
            for turn in range(30):
                jobs = await submit_many(database, owner, 4)
                first, second = Runner(database), Runner(database)
                cancels = [
                    cancelling.cancel(database, job_id, owner, "key:k") for job_id in jobs[:: (-1) ** turn]
                ]
                claims = [first.claim(2), second.claim(4)]
                both = [*cancels, *claims] if turn % 3 else [*claims, *cancels]
                await asyncio.gather(*both)
                for job in (await database.fetch("SELECT id::text, state FROM job ORDER BY id"))[-4:]:
                    steps = [step[0] for step in await story(database, job["id"])]
                    ended[job["state"]] += 1
                    if job["state"] == "cancelled":
                        assert steps == ["queued", "cancelled"]
                    else:
                        assert steps == ["queued", "running", "cancel_requested"]
            assert ended.keys() <= {"cancelled", "cancel_requested"}
            await check_ledger(database)

    asyncio.run(scenario())
