"""Owners share a lane by start-time fair queueing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from harness.ledger import (
    LANE,
    Runner,
    check_ledger,
    elapse,
    make_owner,
    new_job,
    opened,
    row,
    submit_many,
    submit_one,
)
from harness.ledger_states import forget

from headrace.database import Database
from headrace.ids import uuid7
from headrace.ledger.execution import Claimed
from headrace.ledger.retention import prune_flows
from headrace.ledger.submission import submit


async def turns_of(database: Database, count: int) -> list[Claimed]:
    """The next starts, one after the other, as if each job were done at once."""
    runner = Runner(database)
    turns: list[Claimed] = []
    for _ in range(count):
        job = await runner.claim_one()
        turns.append(job)
        await runner.end(job)
    return turns


async def order(database: Database, count: int) -> list[str]:
    """Who gets them."""
    return [job.owner_id for job in await turns_of(database, count)]


async def tag(database: Database, job_id: str) -> float:
    return (await row(database, job_id))["tag"]


def test_owner_with_many_does_not_delay_the_single_job_of_another(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            busy, newcomer = await make_owner(database), await make_owner(database)
            await submit_many(database, busy, 100)
            assert await order(database, 10) == [busy] * 10
            late = await submit_one(database, newcomer)
            assert await tag(database, late) == 9  # as what was started last: it is next
            assert await order(database, 3) == [newcomer, busy, busy]
            await check_ledger(database)

    asyncio.run(scenario())


def test_owners_with_many_take_turns_whoever_came_first(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            first, second = await make_owner(database), await make_owner(database)
            await submit_many(database, first, 30)
            await submit_many(database, second, 10)
            turns = await order(database, 20)
            assert Counter(turns) == {first: 10, second: 10}
            assert turns == [first, second] * 10
            assert await order(database, 20) == [first] * 20

    asyncio.run(scenario())


def test_weights_and_costs_count(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            heavy, light, costly = [await make_owner(database) for _ in range(3)]
            await submit_many(database, costly, 20, cost=4.0)
            await submit_many(database, light, 20)
            await submit_many(database, heavy, 60, weight=4.0)
            turns = Counter(await order(database, 42))
            assert turns == {heavy: 32, light: 8, costly: 2}

    asyncio.run(scenario())


def test_one_batch_of_two_owners_is_tagged_as_two_batches(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owners = [await make_owner(database) for _ in range(2)]
            jobs = [new_job(owners[n % 2], cost=float(n)) for n in range(6)]
            jobs.append(new_job(owners[0], function="other", cost=0.5))
            await submit(database, jobs)
            assert [await tag(database, job.job_id) for job in jobs] == [0, 0, 1, 1, 3, 4, 0]
            again = await submit_many(database, owners[0], 2, cost=3.0)
            assert [await tag(database, job_id) for job_id in again] == [7, 10]

    asyncio.run(scenario())


def test_what_costs_nothing_is_not_always_next(database_url: str) -> None:
    """Callers choose their inputs, and by them what a call costs."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            cheap, honest = [await make_owner(database) for _ in range(2)]
            waiting = set(await submit_many(database, honest, 20))
            runner = Runner(database)
            for _ in range(20):
                await submit_many(database, cheap, 2, cost=0.0)
                await runner.claim(2)
            started = [job_id for job_id in waiting if (await row(database, job_id))["state"] == "running"]
            assert len(started) >= 15

    asyncio.run(scenario())


def test_no_cost_ruins_a_lane(database_url: str) -> None:
    """In a lane whose virtual time has lost its precision, all tags would be equal."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            greedy, other = [await make_owner(database) for _ in range(2)]
            await submit_many(database, greedy, 20, cost=1e18)
            assert len(await Runner(database).claim(20)) == 20
            first = await submit_one(database, other)
            assert await tag(database, await submit_one(database, other)) == await tag(database, first) + 1

    asyncio.run(scenario())


def test_what_is_refused_or_replayed_counts_for_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_one(database, owner, idempotency_key="k")
            refused = [
                new_job(owner, idempotency_key="k", cost=100.0),
                new_job(owner, cost=100.0, most_outstanding=1),
                new_job(owner, cost=100.0, most_waiting=1),
                new_job(owner, cost=100.0, retry_of=uuid7()),
            ]
            # One at a time: in one array, the largest bound counts for all.
            receipts = [(await submit(database, [job]))[0] for job in refused]
            assert [one.outcome for one in receipts] == [
                "replayed",
                "quota-exceeded",
                "backlog-full",
                "not-retryable",
            ]
            assert await tag(database, await submit_one(database, owner)) == 1

    asyncio.run(scenario())


def test_idle_owner_saves_nothing_up(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            busy, idle = await make_owner(database), await make_owner(database)
            await submit_one(database, idle)
            await submit_many(database, busy, 60)
            await order(database, 51)
            await submit_many(database, idle, 10)
            assert Counter(await order(database, 18)) == {busy: 9, idle: 9}

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["retry", "lost", "displaced", "returned"])
def test_requeue_keeps_its_tag(database_url: str, kind: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            first, *_ = await submit_many(database, owner, 5, attempts=3)
            runner = Runner(database)
            claimed = await runner.claim_one()
            assert claimed.job_id == first
            before = await tag(database, first)
            await order(database, 2)
            assert await runner.end(claimed, kind) == "queued"  # type: ignore[arg-type]
            assert await tag(database, first) == before
            await elapse(database, 10)  # over the pause before the retry
            assert [job.job_id for job in await runner.claim(1)] == [first]
            # The lane's virtual time never goes back.
            assert await database.fetch("SELECT name, virtual_time FROM lane") == [
                {"name": LANE, "virtual_time": 2.0}
            ]

    asyncio.run(scenario())


def test_classes_of_owners_with_full_backlogs_share_by_their_weights(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            low, normal, high = [await make_owner(database) for _ in range(3)]
            for owner, weight in ((low, 0.25), (normal, 1.0), (high, 4.0)):
                await submit_many(database, owner, 84, weight=weight)
            turns = await order(database, 84)
            assert Counter(turns) == {low: 4, normal: 16, high: 64}
            # And not in bursts: in any window, nobody is more than one turn off.
            for start in range(0, 84, 21):
                window = Counter(turns[start : start + 21])
                assert window[low] == 1
                assert 3 <= window[normal] <= 5

    asyncio.run(scenario())


def test_what_is_urgent_overtakes_its_owners_other_jobs_and_nobody_elses_share(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, other = await make_owner(database), await make_owner(database)
            await submit_many(database, owner, 60)
            await submit_many(database, other, 60)
            await order(database, 20)
            low = await submit_one(database, owner, weight=0.25)
            urgent = await submit_many(database, owner, 3, weight=4.0)
            turns = await turns_of(database, 20)
            places = [place for place, job in enumerate(turns) if job.job_id in urgent]
            assert max(places) < 5
            # What is low has its turn too, and the other owner no fewer than before.
            assert low in {job.job_id for job in turns}
            assert Counter(job.owner_id for job in turns)[other] >= 7

    asyncio.run(scenario())


@pytest.mark.parametrize(("cost", "theirs"), [(1.0, 1.0), (1.0, 5.0), (5.0, 1.0)])
def test_one_job_at_a_time_waits_for_one_turn_of_a_thousand(
    database_url: str, cost: float, theirs: float
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            busy, single = await make_owner(database), await make_owner(database)
            for _ in range(2):
                await submit_many(database, busy, 500, cost=theirs)
            runner = Runner(database)
            await runner.claim_one()
            for _ in range(20):
                mine = await submit_one(database, single, cost=cost)
                waited = 0.0
                while (await runner.claim_one()).job_id != mine:
                    waited += theirs
                # As much as its own job before was worth: that is its share.
                assert waited <= max(cost, theirs)
                await runner.claim_one()

    asyncio.run(scenario())


def test_forgotten_flows_change_no_order(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owners = [await make_owner(database) for _ in range(3)]
            orders: list[list[int]] = []
            for prunes in (False, True):
                await forget(database)
                await database.execute("DELETE FROM lane_owner")
                await database.execute("DELETE FROM lane")
                turns: list[int] = []
                forgotten = 0
                for step in range(40):
                    owner = (step + step // 3) % 3
                    weight = (0.25, 1.0, 4.0)[step % 3]
                    count = 3 if step % 7 == 0 else 1
                    await submit_many(database, owners[owner], count, weight=weight, cost=1.0 + step % 4)
                    turns += [owners.index(owner_id) for owner_id in await order(database, step % 3)]
                    if prunes:
                        forgotten += await prune_flows(database, 9)
                orders.append(turns)
                assert (forgotten > 0) == prunes
            assert orders[0] == orders[1]
            assert len(set(orders[0])) == 3

    asyncio.run(scenario())
