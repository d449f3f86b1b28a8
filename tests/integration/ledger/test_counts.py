"""Bounds where much waits already: kept figures stand in for counts, and nothing is refused by them alone."""

from __future__ import annotations

import asyncio

from harness.ledger import LANE, Runner, elapse, make_owner, new_job, opened, submit_many

from headrace.database import Database
from headrace.ledger import settling
from headrace.ledger.settling import settle
from headrace.ledger.submission import submit

KEPT = "SELECT unfinished FROM owner_load WHERE owner_id = %s::uuid"
WAITING = "SELECT waiting FROM lane WHERE name = %s"
COSTS = "SELECT waiting_cost FROM lane WHERE name = %s"


async def count(database: Database, *, with_cost: bool = True) -> bool:
    return await settling.count(database, with_cost=with_cost)


async def kept(database: Database, owner_id: str) -> int | None:
    rows = await database.fetch(KEPT, [owner_id])
    return rows[0]["unfinished"] if rows else None


async def waiting(database: Database) -> int:
    return (await database.fetch(WAITING, [LANE]))[0]["waiting"]


async def costs(database: Database) -> float | None:
    return (await database.fetch(COSTS, [LANE]))[0]["waiting_cost"]


async def outcome(database: Database, owner_id: str, **changes: float) -> tuple[str, int]:
    (receipt,) = await submit(database, [new_job(owner_id, **changes)])
    return receipt.outcome, receipt.outstanding


def test_an_owner_with_few_jobs_is_counted(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 500)
            assert await outcome(database, owner) == ("accepted", 500)
            assert await kept(database, owner) is None

    asyncio.run(scenario())


def test_an_owner_with_many_is_counted_once_and_then_kept_in_mind(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 600)
            assert await outcome(database, owner) == ("accepted", 600)
            assert await kept(database, owner) == 601
            assert await outcome(database, owner) == ("accepted", 601)
            assert await kept(database, owner) == 602
            assert await outcome(database, owner, most_outstanding=602) == ("quota-exceeded", 602)

    asyncio.run(scenario())


def test_nothing_is_refused_by_what_is_kept_alone(database_url: str) -> None:
    """The figure is old: most of the jobs have ended since."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 600)
            assert (await outcome(database, owner, most_outstanding=700))[0] == "accepted"
            runner = Runner(database)
            for job in await runner.claim(95):
                await runner.end(job)
            assert await kept(database, owner) == 601
            assert await outcome(database, owner, most_outstanding=601) == ("accepted", 506)

    asyncio.run(scenario())


def test_maintenance_sets_the_figures_right(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 700)
            await outcome(database, owner)
            runner = Runner(database)
            for job in await runner.claim(100):
                await runner.end(job)
            assert await count(database)
            assert (await kept(database, owner), await waiting(database)) == (601, 601)
            await elapse(database, 3_600)
            for _ in range(2):  # a pass moves 500 at most
                await settle(database, "gateway:test")
            assert await count(database)
            assert (await kept(database, owner), await waiting(database)) == (None, 0)

    asyncio.run(scenario())


def test_a_long_lane_is_bounded_by_its_count(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 600)
            assert (await outcome(database, owner, most_waiting=600))[0] == "backlog-full"
            assert await count(database)
            assert await waiting(database) == 600
            runner = Runner(database)
            await runner.claim(50)  # fewer wait now than is kept
            assert (await outcome(database, owner, most_waiting=551))[0] == "accepted"
            assert (await outcome(database, owner, most_waiting=551))[0] == "backlog-full"

    asyncio.run(scenario())


async def outcomes(database: Database, owner_id: str, count: int, **changes: float) -> list[str]:
    """What becomes of so many submissions, one after the other."""
    return [(await outcome(database, owner_id, **changes))[0] for _ in range(count)]


async def bound(database: Database, column: str, value: float) -> None:
    """Give the lane a bound of its own."""
    await database.execute(f"UPDATE lane SET {column} = %s WHERE name = %s", [value, LANE])


def test_a_lane_is_bounded_by_what_waits_in_it_costs(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            # Whatever has room may pass the bound by its own cost: else nothing large could ever be accepted.
            assert await outcomes(database, owner, 4, cost=3.0, most_cost=7.0) == [
                *["accepted"] * 3,
                "backlog-costly",
            ]
            assert await outcomes(database, owner, 1, most_cost=9.5) == ["accepted"]
            batch = [new_job(owner, cost=3.0, most_cost=15.0) for _ in range(4)]
            assert [one.outcome for one in await submit(database, batch)] == [
                *["accepted"] * 2,
                *["backlog-costly"] * 2,
            ]
            # What runs doesn't wait any more.
            await Runner(database).claim(3)
            assert await outcomes(database, owner, 1, most_cost=8.0) == ["accepted"]

    asyncio.run(scenario())


def test_a_lane_is_bounded_by_the_longest_wait_in_it(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            first = new_job(owner)
            await submit(database, [first])
            await elapse(database, 20)
            assert await outcomes(database, owner, 1, most_age_s=10.0) == ["backlog-old"]
            assert await outcomes(database, owner, 1, most_age_s=30.0) == ["accepted"]
            assert (await runner.claim_one()).job_id == first.job_id
            assert await outcomes(database, owner, 1, most_age_s=10.0) == ["accepted"]
            await elapse(database, 40)
            assert await outcomes(database, owner, 1, most_age_s=30.0) == ["backlog-old"]

    asyncio.run(scenario())


def test_a_lanes_own_bounds_come_before_the_sites(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 2)
            for column, value, refusal in (
                ("most_waiting", 2, "backlog-full"),
                ("most_cost", 2.0, "backlog-costly"),
                ("most_age_s", 10.0, "backlog-old"),
            ):
                await elapse(database, 20 * (column == "most_age_s"))
                await bound(database, column, value)
                wide = {"most_waiting": 100, "most_cost": 100.0, "most_age_s": 100.0}
                assert await outcomes(database, owner, 1, **wide) == [refusal]
                # Both ways: it may also be wider.
                await bound(database, column, 1000)
                narrow = wide | {column: 1e-3 if column == "most_age_s" else 1}
                assert await outcomes(database, owner, 1, **narrow) == ["accepted"]
                await database.execute(f"UPDATE lane SET {column} = NULL")

    asyncio.run(scenario())


def test_cost_and_age_of_a_long_lane_are_those_of_the_last_count(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            await submit_many(database, owner, 600, cost=2.0)
            # Nothing is kept yet, so all are looked at.
            assert await outcomes(database, owner, 1, most_cost=1200.0) == ["backlog-costly"]
            assert await outcomes(database, owner, 1, cost=2.0, most_cost=1201.0) == ["accepted"]
            assert await count(database)
            await runner.claim(50)
            assert await outcomes(database, owner, 1, most_cost=1202.0) == ["backlog-costly"]
            assert await count(database)
            assert await outcomes(database, owner, 1, most_cost=1202.0) == ["accepted"]
            oldest = await runner.claim_one()
            await runner.end(oldest, "returned")
            await elapse(database, 50, oldest.job_id)
            await submit_many(database, owner, 1, cost=2.0)
            await database.execute("UPDATE job SET queued_at = created_at WHERE id = %s", [oldest.job_id])
            assert await count(database)
            assert await outcomes(database, owner, 1, most_age_s=40.0) == ["backlog-old"]
            assert (await runner.claim_one()).job_id == oldest.job_id
            # As many wait as before, and they cost as much; but none of them has waited for long.
            await submit_many(database, owner, 1, cost=2.0)
            assert await count(database)
            assert await outcomes(database, owner, 1, most_age_s=40.0) == ["accepted"]

    asyncio.run(scenario())


def test_cost_and_age_are_kept_only_where_they_are_bounded(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 600, cost=2.0)
            assert await count(database)
            assert await costs(database) == 1200.0
            assert await count(database, with_cost=False)
            assert (await waiting(database), await costs(database)) == (600, None)
            # What isn't kept is counted: by a gateway whose settings say so, or for a bound that is new.
            assert await outcomes(database, owner, 1, most_cost=1200.0) == ["backlog-costly"]
            assert await outcomes(database, owner, 1, cost=2.0, most_cost=1201.0) == ["accepted"]
            await elapse(database, 20)
            assert await outcomes(database, owner, 1, most_age_s=15.0) == ["backlog-old"]
            await bound(database, "most_age_s", 15.0)
            assert await outcomes(database, owner, 1) == ["backlog-old"]
            assert await count(database, with_cost=False)
            assert await costs(database) == 1202.0
            await bound(database, "most_age_s", 25.0)
            assert await outcomes(database, owner, 1) == ["accepted"]

    asyncio.run(scenario())


def test_a_long_lanes_own_bound_counts(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 600)
            await bound(database, "most_waiting", 601)
            assert await outcomes(database, owner, 2) == ["accepted", "backlog-full"]
            assert await count(database)
            assert await outcomes(database, owner, 1) == ["backlog-full"]
            await Runner(database).claim(2)  # fewer wait now than is kept
            assert await outcomes(database, owner, 3) == ["accepted", "accepted", "backlog-full"]

    asyncio.run(scenario())
