"""Places in line: what each is good for, and to whom. The lane takes 10 jobs, and starts 2 in a second."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from harness.ledger import LANE, Runner, check_ledger, make_owner, new_job, opened, standing, submit_many
from harness.places import come, elapse_places, places, refused, set_rate, share

from headrace.database import Database
from headrace.ledger import lanes
from headrace.ledger.submission import submit

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


async def drained(database: Database, count: int) -> None:
    """So many jobs are started, and so much time passes for places as that takes."""
    runner = Runner(database)
    assert len(await runner.claim(count)) == count
    await elapse_places(database, count / RATE)


def test_who_is_refused_is_given_the_next_place_and_each_a_later_one(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        told = [await refused(database, owner, most_waiting=BOUND) for _ in range(5)]
        assert {one.outcome for one in told} == {"backlog-full"}
        assert not any(one.is_placed for one in told)
        given = await places(database)
        assert [one["id"] for one in given] == [one.place for one in told]
        # Half of the bound is free after 2.5 s; then one each half a second.
        assert [one["due_s"] for one in given] == pytest.approx([3.0 + n / RATE for n in range(5)], abs=0.4)
        for one, row in zip(told, given, strict=True):
            assert one.due_s == int(one.due_s or 0)
            assert row["due_s"] <= row["told_s"] <= row["due_s"] + 2

    run(database_url, scenario)


def test_all_that_are_refused_at_once_are_told_different_times(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        jobs = [new_job(owner, most_waiting=BOUND) for _ in range(60)]
        receipts = await submit(database, jobs)
        assert len({receipt.place for receipt in receipts}) == 60
        assert [row["id"] for row in await places(database)] == [receipt.place for receipt in receipts]
        last = (await places(database))[-1]["due_s"]
        assert last == pytest.approx(2.5 + 60 / RATE, abs=0.5)

    run(database_url, scenario)


def test_a_place_is_good_when_it_is_due_and_once(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        told = await refused(database, owner, most_waiting=BOUND)
        await drained(database, 5)
        used = await come(database, owner, most_waiting=BOUND, place=told.place)
        assert (used.outcome, used.is_placed, used.place) == ("accepted", True, None)
        assert await places(database) == []
        await submit_many(database, owner, BOUND - 6, most_waiting=BOUND)
        again = await come(database, owner, most_waiting=BOUND, place=told.place)
        assert (again.outcome, again.is_placed) == ("backlog-full", False)
        assert again.place not in (None, told.place)

    run(database_url, scenario)


def test_who_comes_with_a_place_is_let_in_before_fresh_callers(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other = await make_owner(database)
        told = [await refused(database, owner, most_waiting=BOUND) for _ in range(4)]
        await drained(database, 4)
        fresh = await come(database, other, most_waiting=BOUND)
        assert (fresh.outcome, fresh.is_placed) == ("backlog-full", False)
        await elapse_places(database, 2.0)
        for one in told:
            assert (await come(database, owner, most_waiting=BOUND, place=one.place)).outcome == "accepted"

    run(database_url, scenario)


def test_fresh_callers_are_as_ever_where_nobody_has_a_place(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        await drained(database, 1)
        assert (await come(database, owner, most_waiting=BOUND)).outcome == "accepted"
        assert (await come(database, owner, most_waiting=BOUND)).outcome == "backlog-full"

    run(database_url, scenario)


def test_without_a_rate_there_are_no_places(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        await set_rate(database, None)
        receipt = await come(database, owner, most_waiting=BOUND)
        assert (receipt.outcome, receipt.place, receipt.due_s) == ("backlog-full", None, None)

    run(database_url, scenario)


def test_who_comes_too_early_has_the_same_place_as_before(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        told = await refused(database, owner, most_waiting=BOUND)
        await elapse_places(database, 1.0)
        early = await refused(database, owner, most_waiting=BOUND, place=told.place)
        assert (early.place, early.is_placed) == (told.place, True)
        assert told.due_s is not None
        assert early.due_s == pytest.approx(told.due_s - 1.0, abs=0.9)
        assert len(await places(database)) == 1
        assert await share(database, owner) == 1

    run(database_url, scenario)


def test_who_comes_too_early_while_there_is_room_is_let_in(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        told = await refused(database, owner, most_waiting=BOUND)
        await Runner(database).claim(BOUND)
        assert (await come(database, owner, most_waiting=BOUND, place=told.place)).outcome == "accepted"
        assert await places(database) == []

    run(database_url, scenario)


def test_who_comes_too_late_is_a_fresh_caller(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        told = await refused(database, owner, most_waiting=BOUND)
        await elapse_places(database, (told.due_s or 0) + 5.1)
        late = await refused(database, owner, most_waiting=BOUND, place=told.place)
        assert (late.is_placed, late.place == told.place) == (False, False)

    run(database_url, scenario)


def test_until_five_seconds_after_the_told_instant_it_is_good(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        told = await refused(database, owner, most_waiting=BOUND)
        await drained(database, 1)
        await elapse_places(database, (told.due_s or 0) + 4.0 - 1 / RATE)
        assert (await come(database, owner, most_waiting=BOUND, place=told.place)).is_placed

    run(database_url, scenario)


@pytest.mark.parametrize("whose", ["another owner's", "another function's", "nobody's", "a cheaper call's"])
def test_a_place_is_worth_nothing_to_others(database_url: str, whose: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other = await make_owner(database)
        await set_rate(database, RATE, "bird")
        told = await refused(database, owner, most_waiting=BOUND)
        await drained(database, 1)
        await elapse_places(database, told.due_s or 0)
        changes = {
            "another owner's": {"owner": other},
            "another function's": {"function": "bird"},
            "nobody's": {"place": str(uuid.uuid4())},
            "a cheaper call's": {"cost": 1.1},
        }[whose]
        mine = {"owner": owner, "most_waiting": BOUND, "place": told.place} | changes
        if whose == "another function's":
            await submit_many(database, owner, BOUND, function="bird")
        receipt = await come(database, mine.pop("owner"), **mine)
        assert (receipt.outcome, receipt.is_placed) == ("backlog-full", False)
        # Its owner still has it.
        assert (await come(database, owner, most_waiting=BOUND, place=told.place)).outcome == "accepted"

    run(database_url, scenario)


def test_a_key_finds_its_place(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other = await make_owner(database)
        told = await refused(database, owner, most_waiting=BOUND, idempotency_key="k")
        early = await refused(database, owner, most_waiting=BOUND, idempotency_key="k")
        assert (early.place, early.is_placed) == (told.place, True)
        await drained(database, 5)
        with_another = await refused(database, owner, most_waiting=BOUND - 4, idempotency_key="l")
        assert not with_another.is_placed
        of_another = await refused(database, other, most_waiting=BOUND - 4, idempotency_key="k")
        assert not of_another.is_placed
        used = await come(database, owner, most_waiting=BOUND, idempotency_key="k")
        assert (used.outcome, used.is_placed) == ("accepted", True)
        assert told.place not in {row["id"] for row in await places(database)}
        replayed = await come(database, owner, most_waiting=BOUND, idempotency_key="k")
        assert (replayed.outcome, replayed.is_placed) == ("replayed", False)

    run(database_url, scenario)


def test_equal_keys_in_one_submission_share_a_place(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        jobs = [new_job(owner, most_waiting=BOUND, idempotency_key="k") for _ in range(2)]
        first, second = await submit(database, jobs)
        assert (first.outcome, second.outcome) == ("backlog-full", "backlog-full")
        assert first.place == second.place is not None
        assert first.due_s == second.due_s

    run(database_url, scenario)


def test_who_came_when_told_and_was_refused_goes_before_the_line(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        told = [await refused(database, owner, most_waiting=BOUND) for _ in range(20)]
        await elapse_places(database, told[1].due_s or 0)
        again = [await refused(database, owner, most_waiting=BOUND, place=one.place) for one in told[:2]]
        assert all(one.is_placed for one in again)
        assert not {one.place for one in again} & {one.place for one in told}
        given = {row["id"]: row for row in await places(database)}
        assert [given[one.place]["in_front"] for one in again] == [True, True]
        # One after the other, and the end of the line is where it was.
        dues = [given[one.place]["due_s"] for one in again]
        assert dues == pytest.approx([3.0, 3.5], abs=0.3)
        assert max(dues) < max(row["due_s"] for row in given.values())
        assert await share(database, owner) == 1

    run(database_url, scenario)


def test_what_is_far_off_is_told_without_a_place(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        await set_rate(database, 0.005)
        receipt = await come(database, owner, most_waiting=BOUND)
        assert (receipt.outcome, receipt.place, receipt.due_s) == ("backlog-full", None, 600)
        assert await places(database) == []

    run(database_url, scenario)


def test_places_of_an_owner_are_bounded_by_his_quota(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other = await make_owner(database)
        receipts = [await come(database, other, most_waiting=BOUND, most_outstanding=2) for _ in range(4)]
        assert [one.place is None for one in receipts] == [False, False, True, True]
        # Those without are told the end of the line.
        assert all(one.due_s and one.due_s >= 4 for one in receipts[2:])
        assert len(await places(database)) == 2

    run(database_url, scenario)


def test_places_of_an_owner_are_two_thousand_at_most(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        await set_rate(database, 100.0)
        receipts = await submit(database, [new_job(owner, most_waiting=BOUND) for _ in range(2100)])
        assert sum(one.place is not None for one in receipts) == 2000
        assert len(await places(database)) == 2000
        without = {one.due_s for one in receipts if one.place is None}
        assert min(one or 0 for one in without) >= 20
        assert len(without) > 5, "told one time, they would all come back at once"

    run(database_url, scenario)


def test_who_is_over_his_quota_gets_no_place_and_keeps_the_one_he_has(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        told = await refused(database, owner, most_waiting=BOUND)
        await drained(database, 5)
        over = await come(database, owner, most_outstanding=BOUND, place=told.place)
        assert (over.outcome, over.place, over.due_s) == ("quota-exceeded", None, None)
        assert (await come(database, owner, most_waiting=BOUND, place=told.place)).is_placed

    run(database_url, scenario)


def test_places_that_nobody_uses_are_forgotten_and_the_share_falls_and_rises(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        for _ in range(10):
            await refused(database, owner, most_waiting=BOUND)
        await elapse_places(database, 20.0)
        await lanes.refresh(database, every_s=0)
        assert await places(database) == []
        fallen = await share(database, owner)
        assert fallen == pytest.approx(0.9**10)
        await set_rate(database, RATE)
        told = await refused(database, owner, most_waiting=BOUND)
        await drained(database, 5)
        assert (await come(database, owner, most_waiting=BOUND, place=told.place)).is_placed
        assert await share(database, owner) == pytest.approx(0.9 * fallen + 0.1)

    run(database_url, scenario)


def test_the_share_keeps_above_a_twentieth(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        await submit(database, [new_job(owner, most_waiting=BOUND) for _ in range(200)])
        await elapse_places(database, 200.0)
        await lanes.refresh(database, every_s=0)
        assert await share(database, owner) == 0.05

    run(database_url, scenario)


def test_each_owner_has_a_line_of_his_own(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        other = await make_owner(database)
        for _ in range(100):
            await refused(database, owner, most_waiting=BOUND)
        await refused(database, other, most_waiting=BOUND)
        (given,) = [row for row in await places(database) if row["owner_id"] == other]
        # He has half of the rate, as the other one waits too.
        assert given["due_s"] == pytest.approx(2.5 + 1 / (RATE / 2), abs=0.3)

    run(database_url, scenario)


def test_what_could_not_start_in_time_is_refused_for_its_time_alone(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        outcomes = [(await come(database, owner, queue_s=10.0)).outcome for _ in range(25)]
        # 16 wait 8 s, four fifths of what they may; and somebody has a place then.
        assert outcomes == ["accepted"] * 17 + ["no-capacity"] * 8
        assert len(await places(database)) == 8
        # Another owner has his own share of the lane: his first job would start soon.
        other = await make_owner(database)
        assert (await come(database, other, queue_s=10.0)).outcome == "accepted"

    run(database_url, scenario, full=False)


def test_who_is_in_a_hurry_makes_no_room_scarce_for_others(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        await submit_many(database, owner, 7, most_waiting=BOUND)
        hurried = await refused(database, owner, most_waiting=BOUND, queue_s=0.1)
        assert hurried.outcome == "no-capacity"
        for _ in range(3):
            assert (await come(database, owner, most_waiting=BOUND)).outcome == "accepted"

    run(database_url, scenario, full=False)


@pytest.mark.parametrize("queue_s", [5e-324, 1e9])
def test_the_least_and_the_longest_times_are_times(database_url: str, queue_s: float) -> None:
    async def scenario(database: Database, owner: str) -> None:
        expected = "no-capacity" if queue_s < 1 else "accepted"
        await submit_many(database, owner, 1)
        assert (await come(database, owner, queue_s=queue_s, total_s=1e9)).outcome == expected

    run(database_url, scenario, full=False)


def test_a_job_that_does_another_again_is_told_when_without_a_place(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        runner = Runner(database)
        assert await runner.end(await runner.claim_one(), "failed") == "failed"
        await submit_many(database, owner, 1, most_waiting=BOUND)
        (failed,) = [job["id"] for job in (await standing(database)).values() if job["state"] == "failed"]
        receipt = await come(database, owner, most_waiting=BOUND, retry_of=failed)
        assert (receipt.outcome, receipt.place) == ("backlog-full", None)
        assert receipt.due_s is not None

    run(database_url, scenario)


def test_lanes_tell_of_their_lines(database_url: str) -> None:
    async def scenario(database: Database, owner: str) -> None:
        for _ in range(3):
            await refused(database, owner, most_waiting=BOUND)
        lane = (await lanes.lanes(database))[LANE]
        assert (lane.places, lane.rate, lane.is_measured) == (3, RATE, True)
        assert lane.line_s == pytest.approx(4.0, abs=0.4)
        await lanes.refresh(database, every_s=0)
        lane = (await lanes.lanes(database))[LANE]
        assert (lane.waiting, lane.waiting_cost) == (BOUND, BOUND)

    run(database_url, scenario)
