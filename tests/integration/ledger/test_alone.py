"""Which jobs may run beside others at their next start, and which may not."""

from __future__ import annotations

import asyncio
import uuid

import msgspec
import pytest
from harness.ledger import (
    INTERFACE,
    LANE,
    OFTEN_RETRIED,
    Runner,
    check_ledger,
    elapse,
    make_owner,
    new_call,
    new_job,
    opened,
    outcome,
    row,
    start_of,
    state,
    submit_many,
    submit_one,
)
from harness.ledger_commands import COMMANDS
from harness.ledger_states import placed

from headrace.database import Database
from headrace.ledger.execution import Claimed, Kind, Lane
from headrace.ledger.submission import submit


def test_what_was_lost_with_its_process_on_the_direct_path_is_alone_as_a_job(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            lost = new_job(owner, attempt=1, charged=1, alone=True)
            others = [new_job(owner, attempt=1, charged=1), new_job(owner)]
            call = new_call(owner, attempt=2, alone=True)
            await submit(database, [others[0], lost, others[1]])
            await submit(database, [msgspec.structs.replace(others[1], alone=True, attempt=1)])  # a replay
            await runner.hand_over(call)
            await check_ledger(database)
            await runner.end(start_of(call), "returned")
            jobs = await check_ledger(database)
            assert {job_id for job_id, job in jobs.items() if job["alone"]} == {lost.job_id, call.job_id}
            claimed = await runner.claim(9)
            assert [start.job_id for start in claimed if start.alone] == [call.job_id]

    asyncio.run(scenario())


async def next_start(database: Database, runner: Runner, *, function: str = LANE) -> Claimed:
    """The next one of the only job, once it is due; a claim changes nothing of it."""
    await elapse(database, 20)
    claimed = await runner.claim_one(function=function)
    assert (await row(database, claimed.job_id))["alone"] == claimed.alone
    await check_ledger(database)
    return claimed


@pytest.mark.parametrize(
    ("kinds", "alone"),
    [
        (["lost"], [True]),
        (["displaced"], [True]),
        (["returned"], [False]),
        (["retry"], [False]),
        (["displaced", "returned"], [True, True]),
        (["returned", "displaced"], [False, True]),
        (["lost", "returned", "returned"], [True, True, True]),
        (["lost", "retry", "returned"], [True, False, False]),
        (["displaced", "displaced", "displaced", "displaced"], [True] * 4),
        (["lost", "retry", "lost"], [True, False, True]),
    ],
)
def test_a_job_is_alone_after_a_start_that_ended_with_its_process(
    database_url: str, kinds: list[Kind], alone: list[bool]
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            await submit_one(database, await make_owner(database), attempts=9)
            claimed = await runner.claim_one()
            assert not claimed.alone
            found: list[bool] = []
            for kind in kinds:
                assert await runner.end(claimed, kind) == "queued"
                claimed = await next_start(database, runner)
                found.append(claimed.alone)
            assert found == alone
            assert await runner.end(claimed) == "succeeded"
            await check_ledger(database)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "command", ["settle, past a lease", "reap its runner", "renew, without it in the list"]
)
@pytest.mark.parametrize("was_alone", [False, True])
def test_a_job_whose_runner_is_lost_is_alone_only_if_it_was(
    database_url: str, command: str, was_alone: bool
) -> None:
    """All that the runner ran is lost with it, and none of that is suspected of it."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "running", attempts=3)
            if was_alone:
                assert await made.runner.end(made.claimed, "displaced") == "queued"
                made.claimed = await next_start(database, made.runner)
            await COMMANDS[command].give(database, made)
            claimed = await next_start(database, made.runner)
            assert (claimed.attempt, claimed.alone) == (made.claimed.attempt + 1, was_alone)

    asyncio.run(scenario())


def test_a_call_that_was_lost_on_its_direct_path_is_not_alone(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit(database, [new_job(await make_owner(database), attempt=1, charged=1)])
            assert not (await next_start(database, Runner(database))).alone

    asyncio.run(scenario())


async def suspects_and_others(database: Database, runner: Runner, count: int) -> tuple[list[str], list[str]]:
    """As many jobs that run alone as others behind them."""
    owner = await make_owner(database)
    suspects = await submit_many(database, owner, count)
    claimed = await runner.claim(count)
    await runner.finish(*(outcome(job, "displaced") for job in claimed))
    return suspects, await submit_many(database, owner, count)


def test_a_claim_brings_one_job_that_runs_alone_at_most(database_url: str) -> None:
    """And it comes first; of a runner that is busy with one, others get past those that wait."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            suspects, others = await suspects_and_others(database, runner, 20)

            async def claimed(most: int, alone: int) -> list[str]:
                jobs = await runner.claim(most, alone=alone)
                assert sum(job.alone for job in jobs) <= alone
                return sorted(job.job_id for job in jobs)  # within a claim the order means nothing

            assert await claimed(3, 0) == others[:3]
            assert await claimed(4, 1) == [suspects[0], *others[3:6]]
            assert await claimed(1, 1) == [suspects[1]]
            assert await claimed(1, 0) == [others[6]]
            assert await claimed(99, 0) == others[7:]
            assert await claimed(99, 0) == []
            assert [await claimed(99, 1) for _ in suspects[2:]] == [[job_id] for job_id in suspects[2:]]
            assert await claimed(99, 1) == []
            await check_ledger(database)

    asyncio.run(scenario())


def test_one_job_that_runs_alone_for_all_lanes_of_a_claim(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            lanes = [Lane(name, INTERFACE, group) for group, name in enumerate("abc")]
            for lane in lanes:
                await submit_many(database, owner, 2, function=lane.function)
            claimed = await runner.claim_lanes(lanes, [2, 2, 2])
            await runner.finish(*(outcome(job, "displaced") for job in claimed))
            for lane in lanes[1:]:
                await submit_many(database, owner, 2, function=lane.function)
            # The first group is full with it, the second one isn't.
            jobs = await runner.claim_lanes(lanes, [1, 3, 0])
            assert [(job.function, job.alone) for job in jobs] == [("a", True), ("b", False), ("b", False)]
            jobs = await runner.claim_lanes(lanes, [0, 3, 3])
            assert [(job.function, job.alone) for job in jobs] == [
                ("b", True), ("c", False), ("c", False),
            ]  # fmt: skip

    asyncio.run(scenario())


def test_a_job_that_runs_alone_and_comes_too_late_makes_room_for_the_next(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            late = await submit_one(database, owner, queue_s=20.0, total_s=20.0)
            suspects = await submit_many(database, owner, 2)
            claimed = await runner.claim(3)
            await runner.finish(*(outcome(job, "displaced") for job in claimed))
            lanes = [Lane(LANE, INTERFACE, 0, expected_s=30.0)]
            assert [job.job_id for job in await runner.claim_lanes(lanes, [3])] == suspects[:1]
            assert await state(database, late) == "failed"
            assert [job.job_id for job in await runner.claim_lanes(lanes, [3])] == suspects[1:]

    asyncio.run(scenario())


def test_a_job_that_runs_alone_waits_for_its_retry_like_any(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            job_id = await submit_one(database, owner, **OFTEN_RETRIED)
            assert await runner.end(await runner.claim_one(), "lost") == "queued"
            other = await submit_one(database, owner)
            assert [job.job_id for job in await runner.claim(9)] == [other]
            await elapse(database, 24)
            assert await runner.claim(9, alone=0) == []
            assert [job.job_id for job in await runner.claim(9)] == [job_id]

    asyncio.run(scenario())


def test_a_job_stays_alone_in_another_lane(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "running")
            await made.runner.end(made.claimed, "displaced")
            assert await COMMANDS["move to another lane"].give(database, made) == "moved"
            assert (await next_start(database, made.runner, function="other")).alone

    asyncio.run(scenario())


def test_what_does_a_job_again_begins_anew(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "running", attempts=1)
            assert await made.runner.end(made.claimed, "displaced") == "queued"
            suspect = await next_start(database, made.runner)
            assert await made.runner.end(suspect, "lost") == "failed"
            again = new_job(made.job.owner_id, retry_of=made.job.job_id, job_id=str(uuid.uuid4()))
            await submit(database, [again])
            claimed = await made.runner.claim_one()
            assert (claimed.job_id, claimed.alone) == (again.job_id, False)
            await check_ledger(database)

    asyncio.run(scenario())
