"""Waiting jobs that operators put into another lane."""

from __future__ import annotations

import asyncio
import uuid

import msgspec
import pytest
from harness.bulk import ADA, OTHER, cancelling, carry_out, moving, named, register
from harness.ledger import (
    INTERFACE,
    LANE,
    OFTEN_RETRIED,
    Runner,
    check_ledger,
    elapse,
    make_owner,
    new_job,
    opened,
    row,
    state,
    story,
    submit_many,
    submit_one,
    until_asleep,
    until_blocked,
)
from harness.postgres import query

from headrace.audit import list_audit
from headrace.ledger import bulk, retention
from headrace.ledger.bulk import Command, Selection
from headrace.ledger.submission import submit


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 3)


def test_waiting_jobs_are_moved_to_another_lane_in_their_order(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await register(database, LANE, OTHER)
            ada, bob = await named(database, "ada"), await named(database, "bob")
            there = await submit_one(database, ada, function=OTHER, cost=2.0)
            mine = await submit_many(database, ada, 4, cost=3.0)
            urgent = await submit_one(database, ada, weight=4.0)
            others = await submit_many(database, bob, 2)
            before = {job_id: await row(database, job_id) for job_id in [*mine, urgent, *others]}
            tally = await carry_out(database, moving())
            assert (tally.seen, tally.changed) == (7, 7)
            ended, *goes_on, begun = await list_audit(database, action="jobs.move")
            assert {one.subject for one in (begun, *goes_on)} == {ended.subject}
            assert sorted(job_id for one in goes_on for job_id in one.detail["job_ids"]) == sorted(before)
            for job_id, was in before.items():
                now = await row(database, job_id)
                assert now["function"] == OTHER
                kept = {
                    "state",
                    "interface",
                    "cost",
                    "weight",
                    "queued_at",
                    "queue_deadline_at",
                    "deadline_at",
                }
                assert {name: now[name] for name in kept} == {name: was[name] for name in kept}
                assert (await story(database, job_id))[1:] == [
                    ("queued", 0, ADA, f"moved from lane {LANE} to {OTHER}")
                ]
            jobs = await check_ledger(database)
            assert {jobs[job_id]["entries"] for job_id in before} == {1}
            tags = [(await row(database, job_id))["tag"] for job_id in [there, *mine]]
            assert tags == [0, 2, 5, 8, 11]  # behind what its owner had there, each by its cost
            assert [(await row(database, job_id))["tag"] for job_id in [urgent, *others]] == [0, 0, 1]
            assert await Runner(database).claim(9) == []
            claimed = [job.job_id for job in await Runner(database).claim(9, function=OTHER)]
            assert set(claimed) == {there, *before}
            order = query(database_url, "SELECT id::text FROM job ORDER BY tag, id")
            assert [job_id for (job_id,) in order if job_id in mine] == mine

    asyncio.run(scenario())


def test_only_what_waits_for_that_interface_is_moved(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await register(database, LANE, OTHER)
            owner, runner = await make_owner(database), Runner(database)
            running = await submit_one(database, owner)
            held = await runner.claim_one()
            older = await submit_one(database, owner, interface="i0")
            mine = await submit_one(database, owner)
            assert (await carry_out(database, moving())).changed == 1
            assert [(await row(database, job_id))["function"] for job_id in (running, older, mine)] == [
                LANE, LANE, OTHER
            ]  # fmt: skip
            # Nor does it, whatever the caller has picked.
            (changed,) = await database.fetch(
                "SELECT move_v1(%s::uuid[], %s, %s, %s, %s) AS changed",
                [[running, older, mine], LANE, OTHER, ADA, uuid.uuid4()],
            )
            assert changed["changed"] == 0
            assert await runner.end(held) == "succeeded"
            await check_ledger(database)

    asyncio.run(scenario())


def test_nothing_is_moved_to_a_function_that_is_not_in_service(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await register(database, LANE, OTHER)
            job_id = await submit_one(database, await make_owner(database))
            query(database_url, "SELECT retire_function_v1(%s)", OTHER)
            assert (await carry_out(database, moving())).changed == 0
            assert (await row(database, job_id))["function"] == LANE

    asyncio.run(scenario())


def test_a_moved_job_keeps_the_time_of_its_next_start_and_its_key(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await register(database, LANE, OTHER)
            owner, runner = await make_owner(database), Runner(database)
            job = new_job(owner, idempotency_key="k", **OFTEN_RETRIED)
            await submit(database, [job])
            await runner.end(await runner.claim_one(), "retry")
            due_at = (await row(database, job.job_id))["due_at"]
            assert due_at is not None
            await carry_out(database, moving())
            assert (await row(database, job.job_id))["due_at"] == due_at
            assert await runner.claim(function=OTHER) == []
            (receipt,) = await submit(database, [msgspec.structs.replace(job, job_id=str(uuid.uuid4()))])
            assert (receipt.outcome, receipt.job_id) == ("replayed", job.job_id)
            await check_ledger(database)
            await elapse(database, 24)
            assert (await runner.claim_one(function=OTHER)).attempt == OFTEN_RETRIED["attempt"] + 2

    asyncio.run(scenario())


def test_a_moved_job_is_kept_for_as_long_as_its_key(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await register(database, LANE, OTHER)
            owner, runner = await make_owner(database), Runner(database)
            job = new_job(owner, idempotency_key="k")
            await submit(database, [job])
            await carry_out(database, moving())
            assert await runner.end(await runner.claim_one(function=OTHER)) == "succeeded"
            await elapse(database, 80_000)
            assert await retention.prune_jobs(database, 1, 10) == 0
            (receipt,) = await submit(database, [msgspec.structs.replace(job, job_id=str(uuid.uuid4()))])
            assert (receipt.outcome, receipt.job_id) == ("replayed", job.job_id)
            await elapse(database, 6_401)
            assert await retention.prune_jobs(database, 1, 10) == 1

    asyncio.run(scenario())


def test_a_move_waits_for_whoever_holds_the_job_and_sees_what_became_of_it(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await register(database, LANE, OTHER)
            job_id = await submit_one(database, await make_owner(database))
            async with opened(database_url) as other:
                found = await bulk.find(database, "move", moving().selection, INTERFACE)
                cancelled = asyncio.create_task(
                    other.fetch("SELECT cancel_v1(%s::uuid, NULL, 'a'), pg_sleep(1)", [job_id])
                )
                await until_asleep(database)
                moved = asyncio.create_task(bulk.run(database, moving(), found, actor=ADA))
                await until_blocked(database, 1)
                await cancelled
                assert (await moved).changed == 0
            assert await state(database, job_id) == "cancelled"
            await check_ledger(database)

    asyncio.run(scenario())


def test_moves_cancels_and_submissions_at_once_end_in_no_deadlock(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, connections=8) as database:
            await register(database, LANE, OTHER)
            owners = [await make_owner(database) for _ in range(3)]
            for owner in owners * 4:
                await submit_many(database, owner, 5, function=LANE)
                await submit_many(database, owner, 5, function=OTHER)
            back = Command(
                "move", Selection(function=OTHER), bulk.move_to(OTHER, LANE), INTERFACE, {"to": LANE}
            )
            await asyncio.gather(
                carry_out(database, moving()),
                carry_out(database, back),
                carry_out(database, moving()),
                carry_out(database, cancelling(function=OTHER)),
                *(submit_many(database, owner, 5) for owner in owners),
                Runner(database).claim(20),
                Runner(database).claim(20, function=OTHER),
            )
            await check_ledger(database)

    asyncio.run(scenario())
