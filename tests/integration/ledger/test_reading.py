from __future__ import annotations

import asyncio
import uuid

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

from headrace import registry
from headrace.domain import Budget, Cost, Limits, Manifest, RunnerInfo
from headrace.ledger import execution, status
from headrace.ledger.execution import Report
from headrace.ledger.reading import INLINE, events, find, list_jobs, result, standings, watch
from headrace.ledger.submission import submit

NOBODY = str(uuid.uuid4())


def test_job_as_its_owner_and_an_operator_see_it(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, other, runner = await make_owner(database), await make_owner(database), Runner(database)
            job_id = await submit_one(database, owner, request_id="r", attempts=3)
            found = await find(database, job_id, owner)
            assert found is not None
            assert (found.job_id, found.owner_id, found.function) == (job_id, owner, LANE)
            assert (found.interface, found.state, found.request_id) == ("i1", "queued", "r")
            assert (found.attempt, found.charged, found.attempts, found.sequence) == (0, 0, 3, 1)
            assert (found.started_at, found.finished_at, found.progress) == (None, None, None)
            assert (found.result_size, found.small_result, found.result_expired) == (None, None, None)
            assert (found.error_category, found.error_errors) == (None, [])
            assert await find(database, job_id, None) == found
            assert await find(database, job_id, other) is None
            assert await find(database, NOBODY, owner) is None
            assert await find(database, NOBODY, None) is None

            claimed = await runner.claim_one()
            for fraction in (0.25, 7.0):
                await execution.progress(
                    database, [Report(job_id, claimed.token, claimed.attempt, fraction, f"at {fraction}")]
                )
            found = await find(database, job_id, owner)
            assert found is not None
            assert (found.state, found.progress, found.progress_message) == ("running", 1.0, "at 7.0")
            assert (found.sequence, found.progress_sequence) == (4, 4)
            assert found.started_at == found.first_started_at is not None

            await runner.end(claimed, output=b'"x"', execution_s=0.5)
            found = await find(database, job_id, owner)
            assert found is not None
            assert (found.state, found.result_size, found.small_result) == ("succeeded", 3, b'"x"')
            assert (found.result_expired, found.execution_s) == (False, 0.5)

    asyncio.run(scenario())


def test_result_is_its_owners_and_kept_back_once_it_has_expired(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, other, runner = await make_owner(database), await make_owner(database), Runner(database)
            small, large = await submit_many(database, owner, 2)
            for job in await runner.claim(2):
                assert await result(database, job.job_id, owner) is None
                size = INLINE if job.job_id == small else INLINE + 1
                await runner.end(job, output=b"1" * size)
            assert await result(database, small, owner) == b"1" * INLINE
            assert await result(database, large, None) == b"1" * (INLINE + 1)
            assert await result(database, small, other) is None
            assert await result(database, NOBODY, owner) is None
            found = [await find(database, job_id, owner) for job_id in (small, large)]
            assert [job and job.small_result for job in found] == [b"1" * INLINE, None]
            assert [job and job.result_size for job in found] == [INLINE, INLINE + 1]
            await elapse(database, 3600)
            for job_id in (small, large):
                assert await result(database, job_id, owner) is None
                gone = await find(database, job_id, owner)
                assert gone is not None
                assert (gone.state, gone.result_expired, gone.small_result) == ("succeeded", True, None)
            assert {job.result_expired for job in await list_jobs(database, owner)} == {True}

    asyncio.run(scenario())


def test_result_that_was_removed_is_gone(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            job_id = await submit_one(database, owner)
            await runner.end(await runner.claim_one())
            await database.execute("UPDATE job SET result_place = 'gone', result = NULL")
            gone = await find(database, job_id, owner)
            assert gone is not None
            assert (gone.state, gone.result_expired, gone.small_result) == ("succeeded", True, None)
            assert await result(database, job_id, owner) is None

    asyncio.run(scenario())


def test_lists_are_the_owners_newest_first_in_pages(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, other, runner = await make_owner(database), await make_owner(database), Runner(database)
            jobs = [
                new_job(owner if n % 3 else other, function=("a", "b")[n % 2], input=b"x" * n)
                for n in range(12)
            ]
            await submit(database, jobs[::-1])
            mine = [job.job_id for job in jobs if job.owner_id == owner][::-1]
            ended = {job.job_id for job in await runner.claim(3, function="b")}
            listed = await list_jobs(database, owner)
            assert [job.job_id for job in listed] == mine
            found = [await find(database, job_id, owner) for job_id in mine]
            assert [job and (job.state, job.created_at, job.attempt) for job in found] == [
                (job.state, job.created_at, job.attempt) for job in listed
            ]
            pages: list[str] = []
            while page := await list_jobs(database, owner, before=pages[-1] if pages else None, limit=3):
                assert len(page) <= 3
                pages += [job.job_id for job in page]
            assert pages == mine
            running = await list_jobs(database, owner, state="running")
            assert {job.job_id for job in running} == ended & set(mine)
            of_a = await list_jobs(database, owner, function="a", limit=2)
            assert [job.function for job in of_a] == ["a", "a"]
            both = await list_jobs(database, owner, function="a", state="queued", before=of_a[-1].job_id)
            assert [job.job_id for job in both] == [job.job_id for job in listed if job.function == "a"][2:]
            assert await list_jobs(database, NOBODY) == []
            assert await list_jobs(database, owner, limit=0) == []

    asyncio.run(scenario())


def test_events_are_numbered_and_progress_takes_numbers_too(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            job_id = await submit_one(database, owner)
            claimed = await runner.claim_one()
            await execution.progress(database, [Report(job_id, claimed.token, claimed.attempt, 0.5, "")])
            await runner.end(claimed)
            told = await events(database, job_id)
            assert [(one.sequence, one.from_state, one.state, one.attempt) for one in told] == [
                (1, None, "queued", 0),
                (2, "queued", "running", 1),
                (4, "running", "succeeded", 1),
            ]
            assert told[0].at <= told[1].at <= told[2].at
            for after in range(6):
                later = await events(database, job_id, after)
                assert later == [one for one in told if one.sequence > after]
            assert await events(database, NOBODY) == []

    asyncio.run(scenario())


def test_watching_is_remembered_once_and_not_of_a_final_job(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            first, second = str(uuid.uuid4()), str(uuid.uuid4())
            job_id = await submit_one(database, owner, waiter=first)

            async def watched() -> tuple[list[str], bool]:
                kept = await row(database, job_id)
                return kept["waiters"], kept["followed"]

            await watch(database, job_id, first, follow=False)
            assert await watched() == ([first], False)
            await watch(database, job_id, second, follow=True)
            assert await watched() == ([first, second], True)
            await watch(database, job_id, second, follow=False)
            assert await watched() == ([first, second], True)
            await runner.end(await runner.claim_one())
            third = str(uuid.uuid4())
            await watch(database, job_id, third, follow=True)
            assert await watched() == ([first, second], True)
            await watch(database, NOBODY, first, follow=True)

    asyncio.run(scenario())


def test_standings(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            first, second, third = await submit_many(database, owner, 3)
            await runner.end(await runner.claim_one())
            claimed = await runner.claim_one()
            assert claimed.job_id == second
            await execution.progress(database, [Report(second, claimed.token, claimed.attempt, 0.5, "")])
            assert await standings(database, [first, second, third, NOBODY]) == {
                first: ("succeeded", 3),
                second: ("running", 3),
                third: ("queued", 1),
            }
            assert await standings(database, []) == {}
            await check_ledger(database)

    asyncio.run(scenario())


def test_lanes_at_a_glance(database_url: str) -> None:
    manifest = Manifest(
        name=LANE,
        interface="i1",
        revision="r",
        description="",
        input_schema={},
        output_schema={},
        budget=Budget(sync=3, hard=9),
        limits=Limits(input="1KiB"),
        attempts=2,
        concurrency=1,
        cost=Cost.items("texts"),
        pool="default",
        examples=[],
    )

    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            info = RunnerInfo(runner.session_id, None, "default", {LANE: "i1"})
            await registry.register(database, info, [manifest])
            (lane,) = await status.lanes(database)
            assert (lane.function, lane.waiting, lane.oldest_s, lane.running, lane.runners) == (
                LANE,
                0,
                None,
                0,
                1,
            )
            await submit_many(database, owner, 4)
            await submit_many(database, owner, 2, function="other")
            await elapse(database, 10)
            claimed = await runner.claim(2)
            await runner.end(claimed[0])
            (lane,) = await status.lanes(database)
            assert (lane.waiting, lane.running) == (2, 1)
            assert lane.oldest_s is not None
            assert 10 <= lane.oldest_s < 30

    asyncio.run(scenario())
