"""What operators do to many jobs at a time, and to lanes."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime

import msgspec
import pytest
from harness.bulk import ADA, BOUNDS, OTHER, cancelling, carry_out, fail, named, register, retrying
from harness.ledger import (
    LANE,
    Runner,
    check_ledger,
    elapse,
    make_owner,
    new_job,
    opened,
    state,
    story,
    submit_many,
    submit_one,
)
from harness.postgres import query

from headrace.audit import list_audit
from headrace.database import queries
from headrace.errors import HeadraceError
from headrace.ledger import bulk, reading, status
from headrace.ledger.bounds import set_bounds
from headrace.ledger.bulk import Selection, Tally
from headrace.ledger.submission import submit


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 3)


# ---------------------------------------------------------------------- which jobs


def test_filters_pick_the_jobs_that_pass_all_of_them(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            ada, bob = await named(database, "ada"), await named(database, "bob")
            failed = await submit_many(database, ada, 2)
            await fail(database, failed)
            await submit_many(database, ada, 3)
            await submit_many(database, bob, 4)
            await submit_many(database, bob, 5, function=OTHER)
            await Runner(database).claim(1, function=OTHER)
            batch = str(uuid.uuid4())
            query(
                database_url,
                "INSERT INTO batch (id, owner_id, function, size) VALUES (%s, %s, 'f', 1)",
                batch,
                bob,
            )
            query(
                database_url,
                "UPDATE job SET batch_id = %s, batch_index = 0 WHERE id ="
                " (SELECT min(id::text)::uuid FROM job WHERE owner_id = %s AND function = %s)",
                batch, bob, LANE,
            )  # fmt: skip
            for kind, only, matching in (
                ("cancel", {}, 12),
                ("cancel", {"function": LANE}, 7),
                ("cancel", {"owner": "bob"}, 9),
                ("cancel", {"owner": "bob", "function": LANE}, 4),
                ("cancel", {"state": "running"}, 1),
                ("cancel", {"state": "running", "owner": "ada"}, 0),
                ("cancel", {"batch_id": batch}, 1),
                ("cancel", {"older_s": 3600.0}, 0),
                ("move", {"function": OTHER}, 4),
                ("retry", {}, 2),
                ("retry", {"category": "broken"}, 2),
                ("retry", {"category": "worker-lost"}, 0),
                ("retry", {"state": "cancelled"}, 0),
            ):
                found = await bulk.find(database, kind, Selection(**only))  # type: ignore[arg-type]
                assert found.matching == matching, (kind, only)
            await elapse(database, 3600)
            assert (await bulk.find(database, "cancel", Selection(older_s=3600.0))).matching == 12
            assert (await bulk.find(database, "cancel", Selection(), "i2")).matching == 0
            with pytest.raises(HeadraceError, match="there is no owner 'eve'"):
                await bulk.find(database, "cancel", Selection(owner="eve"))

    asyncio.run(scenario())


def test_what_is_accepted_after_the_count_is_left_alone(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 5)
            found = await bulk.find(database, "cancel", Selection())
            later = await submit_one(database, owner)
            tally = await bulk.run(database, cancelling(), found, actor=ADA)
            assert (tally.seen, tally.changed) == (5, 5)
            assert await state(database, later) == "queued"

    asyncio.run(scenario())


# ---------------------------------------------------------------------- cancel


def test_many_jobs_are_cancelled_in_chunks_and_told_of(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            job_ids = await submit_many(database, await named(database, "ada"), 7)
            held = await runner.claim(2)
            told: list[tuple[int, int]] = []
            tally = await carry_out(
                database,
                cancelling(owner="ada"),
                tell=lambda so_far: told.append((so_far.seen, so_far.changed)),
            )
            assert told == [(3, 3), (6, 6), (7, 7)]
            assert (tally.changed, +tally.refused) == (7, {})
            states = [await state(database, job_id) for job_id in job_ids]
            assert sorted(states) == ["cancel_requested"] * 2 + ["cancelled"] * 5
            for job_id in job_ids:
                assert (await story(database, job_id))[-1][2] == ADA
            told_of = [
                entry.detail["job_ids"]
                for entry in await list_audit(database, action="jobs.cancel", actor=ADA)
                if entry.detail["stage"] == "goes on"
            ]
            assert told_of[::-1] == [job_ids[:3], job_ids[3:6], job_ids[6:]]
            assert (await carry_out(database, cancelling(owner="ada"))).changed == 0
            assert [await runner.end(job) for job in held] == ["cancelled"] * 2
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_limit_takes_the_oldest(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            job_ids = await submit_many(database, await make_owner(database), 6)
            assert (await carry_out(database, cancelling(), limit=4)).changed == 4
            assert [await state(database, job_id) for job_id in job_ids] == ["cancelled"] * 4 + ["queued"] * 2

    asyncio.run(scenario())


def test_an_interrupted_command_goes_on_when_it_is_given_again(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_many(database, await make_owner(database), 8)

            def interrupted(_tally: Tally) -> None:
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                await carry_out(database, cancelling(), tell=interrupted)
            assert (await carry_out(database, cancelling())).changed == 5
            told = await list_audit(database, action="jobs.cancel")
            assert [(entry.detail["stage"], entry.detail.get("changed")) for entry in reversed(told)] == [
                ("begun", None), ("goes on", None), ("interrupted", 3),
                ("begun", None), ("goes on", None), ("goes on", None), ("ended", 5),
            ]  # fmt: skip
            events = query(database_url, "SELECT count(*) FROM job_event WHERE state = 'cancelled'")
            assert events == [(8,)]

    asyncio.run(scenario())


# ---------------------------------------------------------------------- retry


def test_many_jobs_are_done_again_once_each(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await named(database, "ada")
            job_ids = await submit_many(database, owner, 7)
            await fail(database, job_ids)
            tally = await carry_out(database, retrying(owner="ada"))
            assert (tally.seen, tally.changed, +tally.refused) == (7, 7, {})
            waiting = await reading.list_jobs(database, owner, state="queued")
            assert {job.retry_of for job in waiting} == set(job_ids)
            assert (await story(database, waiting[0].job_id))[0][2] == ADA
            begun, ended = reversed(await list_audit(database, action="jobs.retry"))
            assert begun.subject == ended.subject
            assert {begun.actor, ended.actor} == {ADA}
            assert begun.detail == {"stage": "begun", "filter": {"owner": "ada"}, "matching": 7}
            assert ended.detail == {"stage": "ended", "filter": {"owner": "ada"}, "changed": 7, "refused": {}}
            assert (await carry_out(database, retrying(owner="ada"))).seen == 0
            await check_ledger(database)

    asyncio.run(scenario())


def test_two_operators_retry_each_job_once_between_them(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await fail(database, await submit_many(database, owner, 12))
            tallies = await asyncio.gather(*(carry_out(database, retrying()) for _ in range(3)))
            assert sum(tally.changed for tally in tallies) == 12
            assert len(await reading.list_jobs(database, owner, state="queued")) == 12

    asyncio.run(scenario())


def test_retries_keep_to_the_quotas_of_their_owners(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            ada, bob = await named(database, "ada"), await named(database, "bob")
            query(database_url, "UPDATE owner SET most_outstanding = 2 WHERE name = 'ada'")
            await fail(database, await submit_many(database, ada, 4) + await submit_many(database, bob, 4))
            tally = await carry_out(database, retrying(msgspec.structs.replace(BOUNDS, most_outstanding=3)))
            assert tally.changed == 5
            assert tally.refused["quota-exceeded"] == 3
            # They are no less dead for it.
            assert (await bulk.find(database, "retry", Selection())).matching == 3

    asyncio.run(scenario())


def test_what_nobody_would_execute_is_not_retried(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await fail(database, await submit_many(database, await make_owner(database), 4))
            tally = await carry_out(database, retrying(is_served=False))
            assert (tally.changed, +tally.refused) == (0, {"no-runner": 4})
            assert (await bulk.find(database, "retry", Selection())).matching == 4

    asyncio.run(scenario())


def test_cancelled_jobs_are_retried_only_where_they_are_asked_for(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_many(database, await make_owner(database), 2)
            await carry_out(database, cancelling())
            assert (await carry_out(database, retrying())).seen == 0
            assert (await carry_out(database, retrying(state="cancelled"))).changed == 2

    asyncio.run(scenario())


def test_dead_letters_of_all_owners_are_listed_with_why(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            for name in ("ada", "bob"):
                await fail(database, await submit_many(database, await named(database, name), 2), name)
            letters = await bulk.dead(database, Selection(), 3)
            assert [(one.owner, one.category) for one in letters] == [("bob", "bob")] * 2 + [("ada", "ada")]
            assert {(one.function, one.state, one.attempt, one.message) for one in letters} == {
                (LANE, "failed", 1, "It broke.")
            }
            (only,) = await bulk.dead(database, Selection(owner="ada"), 1)
            assert only.owner == "ada"

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["count", "chunk", "dead"])
def test_what_picks_jobs_is_part_of_each_query(database_url: str, name: str) -> None:
    """As a function of its own it would read all that matches, with the inputs, before any is left out."""
    filters = ("function", "interface", "owner_id", "state", "category", "batch_id", "after")
    some = {"kind": "retry", "older_s": 0.0, "before": datetime.now(UTC), "limit": 1}

    async def scenario() -> None:
        async with opened(database_url) as database:
            explain = "EXPLAIN " + queries("operators")[name]
            plan = await database.fetch(explain, {**dict.fromkeys(filters), **some})
            told = "\n".join(row["QUERY PLAN"] for row in plan)
            assert " on job j" in told
            assert "Function Scan" not in told

    asyncio.run(scenario())


# ---------------------------------------------------------------------- bounds of a lane


def test_a_function_has_bounds_of_its_own(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await register(database, LANE)
            owner = await make_owner(database)
            assert await set_bounds(database, LANE, most_waiting=2, most_age_s=600.0, actor=ADA)
            (lane,) = await status.lanes(database)
            assert (lane.most_waiting, lane.most_cost, lane.most_age_s) == (2, None, 600.0)
            receipts = await submit(database, [new_job(owner) for _ in range(3)])
            assert [receipt.outcome for receipt in receipts] == ["accepted", "accepted", "backlog-full"]
            assert await set_bounds(database, LANE, most_waiting=None, most_cost=2.0, actor=ADA)
            (receipt,) = await submit(database, [new_job(owner)])
            assert receipt.outcome == "backlog-costly"
            assert await set_bounds(database, LANE, most_cost=None, actor=ADA)
            await submit_one(database, owner)
            await elapse(database, 30)
            await set_bounds(database, LANE, most_age_s=20.0, actor=ADA)
            (receipt,) = await submit(database, [new_job(owner)])
            assert receipt.outcome == "backlog-old"
            told = await list_audit(database, action="function.limit", subject=LANE)
            assert [entry.detail for entry in reversed(told)] == [
                {"most_waiting": 2, "most_age_s": 600.0},
                {"most_waiting": None, "most_cost": 2.0},
                {"most_cost": None},
                {"most_age_s": 20.0},
            ]

    asyncio.run(scenario())


def test_bounds_that_cannot_be_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            assert not await set_bounds(database, LANE, most_waiting=1, actor=ADA)
            await register(database, LANE)
            for changes in (
                {"most_waiting": 0},
                {"most_waiting": 10**9},
                {"most_cost": -1.0},
                {"most_cost": float("nan")},
                {"most_age_s": 0.0},
                {"most_age_s": float("inf")},
            ):
                with pytest.raises(ValueError, match="must be from"):
                    await set_bounds(database, LANE, **changes, actor=ADA)  # type: ignore[arg-type]
            assert query(database_url, "SELECT count(*) FROM audit WHERE action = 'function.limit'") == [(0,)]

    asyncio.run(scenario())
