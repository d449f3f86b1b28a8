"""What places may take from others, and may not. The lane takes 10 jobs, and starts 2 in a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from harness.ledger import LANE, Runner, check_ledger, make_owner, new_job, opened, submit_many, until_blocked
from harness.places import come, elapse_places, places, refused, set_rate

from headrace.database import Database, queries
from headrace.ids import uuid7
from headrace.ledger import lanes
from headrace.ledger.submission import submit

_ADMIT: Final = queries("batches")["admit"]
BOUND = 10
RATE = 2.0
Scenario = Callable[[Database, str], Awaitable[None]]


def run(url: str, scenario: Scenario, *, full: bool = True) -> None:
    """Run a scenario with an owner whose jobs fill the lane."""

    async def prepared() -> None:
        async with opened(url) as database:
            owner = await make_owner(database)
            await set_rate(database, RATE)
            if full:
                await submit_many(database, owner, BOUND, most_waiting=BOUND)
            await scenario(database, owner)
            await check_ledger(database)

    asyncio.run(prepared())


async def admitted(database: Database, owner: str, count: int, **changes: Any) -> str | None:
    """Why the jobs of a batch are refused, if they are."""
    bounds = {"most_outstanding": 1000, "most_waiting": BOUND, "most_cost": None, "most_age_s": None}
    batch = {"owner_id": owner, "function": LANE, "costs": [1.0] * count, "weight": 1.0, "queue_s": 86_400.0}
    return (await database.fetch(_ADMIT, bounds | batch | changes))[0]["refusal"]


def test_a_place_of_another_stops_no_batch_that_fits(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other = await make_owner(database)
        await refused(database, other, most_waiting=BOUND)
        await Runner(database).claim(BOUND)
        assert await admitted(database, owner, BOUND) is None

    run(database_url, scenario)


def test_a_batch_leaves_what_is_kept_for_places_that_are_due(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other = await make_owner(database)
        told = [await refused(database, other, most_waiting=BOUND) for _ in range(2)]
        await Runner(database).claim(BOUND - 1)
        await elapse_places(database, told[-1].due_s or 0)
        assert await admitted(database, owner, BOUND - 2) == "backlog-full"
        assert await admitted(database, owner, BOUND - 3) is None

    run(database_url, scenario)


def test_places_keep_a_quarter_at_most_and_nothing_of_an_idle_lane(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other = await make_owner(database)
        for _ in range(8):
            await refused(database, other, most_waiting=BOUND)
        await elapse_places(database, 6.9)
        runner = Runner(database)
        await runner.claim(BOUND)
        outcomes = [(await come(database, owner, most_waiting=BOUND)).outcome for _ in range(4)]
        # A half less a quarter.
        assert outcomes == ["accepted"] * 3 + ["backlog-full"]
        await runner.claim(BOUND)
        assert (await come(database, owner, most_waiting=1)).outcome == "accepted"

    run(database_url, scenario)


def test_who_has_as_many_places_as_he_may_keeps_one_when_he_is_refused_again(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other = await make_owner(database)
        few = {"most_waiting": BOUND, "most_outstanding": 2}
        told = [await refused(database, other, **few) for _ in range(2)]
        await elapse_places(database, told[0].due_s or 0)
        again = await refused(database, other, place=told[0].place, **few)
        assert again.is_placed
        assert len(await places(database)) == 2

    run(database_url, scenario)


def test_who_is_in_a_hurry_makes_no_lane_narrow_for_others(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other, third = await make_owner(database), await make_owner(database)
        await submit_many(database, owner, 5)
        assert (await refused(database, owner, queue_s=0.1)).outcome == "no-capacity"
        async with database.transaction(within=30) as transaction:
            await transaction.fetch("SELECT pg_advisory_xact_lock(line_lock_v1(%s))", [LANE])
            for one in (other, third):
                assert (await come(database, one)).outcome == "accepted"

    run(database_url, scenario, full=False)


@pytest.mark.parametrize("cost", [5e-324, 1e-300])
def test_costs_next_to_nothing_are_nothing(database_url: str, cost: float) -> None:
    async def scenario(database: Database, owner: str) -> None:
        limits = {"most_waiting": 3, "most_cost": 100.0, "cost": cost}
        await submit_many(database, owner, 3, **limits)
        told = await refused(database, owner, **limits)
        assert [row["cost"] for row in await places(database)] == [0]
        await elapse_places(database, told.due_s or 0)
        assert (await refused(database, owner, place=told.place, **limits)).is_placed
        assert await admitted(database, owner, 1, costs=[cost] * 3, most_waiting=3) == "backlog-full"
        # As releases before took them.
        await database.execute("UPDATE job SET cost = %s", [cost])
        await refused(database, owner, **limits)
        await lanes.refresh(database, every_s=0)
        assert (await lanes.lanes(database))[LANE].waiting == 3

    run(database_url, scenario, full=False)


def test_a_refusal_that_did_not_arrive_is_given_again(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        jobs = [new_job(owner, most_waiting=BOUND) for _ in range(3)]
        first = await submit(database, jobs)
        again = await submit(database, jobs)
        assert [one.place for one in again] == [one.place for one in first]
        assert all(one.place is not None and one.is_placed for one in again)
        assert len(await places(database)) == 3
        # Another job is another caller.
        assert (await come(database, owner, most_waiting=BOUND)).place not in {one.place for one in first}

    run(database_url, scenario)


def test_who_waits_behind_his_own_twin_is_a_replay(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        await submit_many(database, owner, BOUND - 1, most_waiting=BOUND)
        job_id = uuid7()
        async with database.transaction(within=30) as transaction:
            await transaction.fetch("SELECT pg_advisory_xact_lock(line_lock_v1(%s))", [LANE])
            twins = [
                asyncio.create_task(come(database, owner, job_id=job_id, most_waiting=BOUND))
                for _ in range(2)
            ]
            await until_blocked(database, 2)
        receipts = await asyncio.gather(*twins)
        assert sorted(one.outcome for one in receipts) == ["accepted", "replayed"]
        assert await places(database) == []

    run(database_url, scenario, full=False)


def test_an_owner_has_so_many_places_over_all_his_flows(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        few = {"most_waiting": BOUND, "most_outstanding": 3}
        other = await make_owner(database)
        told = [await come(database, other, weight=weight, **few) for weight in (1.0, 2.0, 3.0, 4.0)]
        assert [one.place is not None for one in told] == [True, True, True, False]

    run(database_url, scenario)


def test_what_was_cancelled_makes_nobody_late(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other = await make_owner(database)
        gone = await submit_many(database, other, 500, queue_s=600.0)
        await database.execute("DELETE FROM procrastinate_jobs")
        await database.execute("DELETE FROM job_event")
        await database.execute("DELETE FROM job WHERE id = ANY (%s::uuid[])", [gone])
        await submit_many(database, owner, BOUND, most_waiting=BOUND)
        told = [await refused(database, owner, most_waiting=BOUND) for _ in range(8)]
        dues = [row["due_s"] for row in await places(database)]
        # The whole rate is his.
        assert dues[-1] - dues[0] == pytest.approx((len(told) - 1) / RATE, abs=0.4)

    run(database_url, scenario, full=False)


def test_a_line_does_not_remember_a_rate_that_was_too_low(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        await set_rate(database, 0.1)
        for _ in range(10):
            await refused(database, owner, most_waiting=BOUND)
        await set_rate(database, RATE)
        told = await refused(database, owner, most_waiting=BOUND)
        # Half of the bound, twice what is in the line, and its own turn.
        assert (told.due_s or 0) <= 2.5 + 2 * 10 / RATE + 1 / RATE + 2

    run(database_url, scenario)


def test_a_bound_of_thousands_is_kept_to(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        most = 600
        await set_rate(database, None)
        await submit_many(database, owner, most - 100, most_waiting=most)
        # An old count, as if nothing had come since.
        await database.execute("UPDATE lane SET waiting = 510")
        parts = [[new_job(owner, most_waiting=most) for _ in range(60)] for _ in range(4)]
        receipts = await asyncio.gather(*(submit(database, part) for part in parts))
        accepted = sum(one.outcome == "accepted" for part in receipts for one in part)
        assert accepted == 100

    run(database_url, scenario, full=False)
