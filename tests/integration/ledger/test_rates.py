"""How fast lanes drain: reported by runners at first, measured while jobs wait."""

from __future__ import annotations

import asyncio
import uuid

import msgspec
import pytest
from harness.ledger import LANE, Runner, make_owner, new_job, opened, submit_many

from headrace.capacity import Capacity, Report
from headrace.database import Database
from headrace.ledger import lanes
from headrace.ledger.lanes import LaneStanding
from headrace.ledger.submission import submit

LEAN = 0.95

_RUNNER = "INSERT INTO runner (id, pool, interfaces) VALUES (%s::uuid, 'default', '{}')"
_REPORT = (
    "INSERT INTO runner_report (runner_id, reported_at, report) VALUES (%s::uuid, clock_timestamp(), %s)"
    " ON CONFLICT (runner_id) DO UPDATE SET report = excluded.report"
)
_BACK = "UPDATE lane_pace SET refreshed_at = refreshed_at - make_interval(secs => %s)"
_FORGET_SHORT = "UPDATE lane_started SET short_at = short_at - make_interval(secs => %s)"


async def report(database: Database, told: bytes | Report, runner_id: str | None = None) -> str:
    """What a live runner says."""
    if runner_id is None:
        runner_id = str(uuid.uuid4())
        await database.execute(_RUNNER, [runner_id])
    content = told if isinstance(told, bytes) else msgspec.json.encode(told)
    await database.execute(_REPORT, [runner_id, content])
    return runner_id


async def look(database: Database, after_s: float = 0.0) -> LaneStanding:
    """The lane as the next look sees it, so many seconds after the last."""
    if after_s:
        await database.execute(_BACK, [after_s])
        await database.execute(_FORGET_SHORT, [after_s])
    assert await lanes.refresh(database, every_s=0)
    return (await lanes.lanes(database))[LANE]


def test_before_anything_is_known_there_is_no_rate(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_many(database, await make_owner(database), 3)
            lane = await look(database)
            assert (lane.rate, lane.is_measured, lane.waiting, lane.waiting_cost) == (None, False, 3, 3)

    asyncio.run(scenario())


def test_reports_tell_it_first(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            one = await report(database, Report(functions={LANE: Capacity(slots=4, mean_s=0.5)}))
            lane = await look(database)
            assert (lane.rate, lane.is_measured) == (pytest.approx(LEAN * 8), False)
            await report(database, Report(functions={LANE: Capacity(slots=2, mean_s=9.0, cost_s=0.1)}))
            assert (await look(database)).rate == pytest.approx(LEAN * 28)
            # What says nothing, or can't be read, counts for nothing.
            await report(database, Report(functions={LANE: Capacity(slots=3)}))
            for strange in (b"no JSON", b'{"functions": {"fi\\u0000sh": {}}}', b"\xff", b'{"functions": 3}'):
                await report(database, strange)
            assert (await look(database)).rate == pytest.approx(LEAN * 28)
            await database.execute("UPDATE runner SET draining = true WHERE id = %s::uuid", [one])
            assert (await look(database)).rate == pytest.approx(LEAN * 20)

    asyncio.run(scenario())


def test_it_is_measured_while_jobs_wait(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            await report(database, Report(functions={LANE: Capacity(slots=4, mean_s=0.1)}))
            await submit(database, [new_job(owner, cost=2.0) for _ in range(200)])
            await look(database)
            for _ in range(10):
                await runner.claim(6)
                lane = await look(database, 1.0)
                assert lane.is_measured
                # Six jobs of a cost of 2 a second; a look takes a little itself.
                assert LEAN * 12 * 0.8 < (lane.rate or 0) <= LEAN * 12

    asyncio.run(scenario())


def test_spans_without_a_backlog_say_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            await report(database, Report(functions={LANE: Capacity(slots=4, mean_s=0.5)}))
            await look(database)
            for _ in range(5):
                # Some wait at each look, but were not enough for the runner's slots in between.
                await submit_many(database, owner, 5)
                assert len(await runner.claim(6)) <= 6
                await submit_many(database, owner, 1)
                lane = await look(database, 1.0)
                assert (lane.is_measured, lane.waiting) == (False, 1)
                assert lane.rate == pytest.approx(LEAN * 8)
                assert len(await runner.claim(6)) == 1
                await submit_many(database, owner, 1)

    asyncio.run(scenario())


def test_a_lane_that_nobody_serves_has_none_any_more(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            serving = await report(database, Report(functions={LANE: Capacity(slots=4, mean_s=0.5)}))
            await submit_many(database, owner, 50)
            await look(database)
            await runner.claim(5)
            assert (await look(database, 1.0)).is_measured
            await database.execute("UPDATE runner SET draining = true WHERE id = %s::uuid", [serving])
            await database.execute("UPDATE lane_started SET at = at - interval '1 minute'")
            lane = await look(database, 1.0)
            assert (lane.rate, lane.is_measured) == (None, False)
            await database.execute("UPDATE runner SET draining = false WHERE id = %s::uuid", [serving])
            assert (await look(database, 1.0)).is_measured

    asyncio.run(scenario())


def test_it_follows_slots_that_come_and_go(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            one = await report(database, Report(functions={LANE: Capacity(slots=8, mean_s=0.5)}))
            await submit_many(database, owner, 300)
            await look(database)
            for _ in range(8):
                await runner.claim(16)
                before = await look(database, 1.0)
            await report(database, Report(functions={LANE: Capacity(slots=4, mean_s=0.5)}), one)
            await runner.claim(8)
            after = await look(database, 1.0)
            assert 0.4 < (after.rate or 0) / (before.rate or 1) < 0.6

    asyncio.run(scenario())


def test_looks_are_shared_by_all_processes(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_many(database, await make_owner(database), 1)
            assert await lanes.refresh(database)
            assert not await lanes.refresh(database)
            await database.execute(_BACK, [10.0])
            assert await lanes.refresh(database)

    asyncio.run(scenario())


def test_sessions_that_ended_are_forgotten_without_a_trace(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 100)
            await look(database)
            for _ in range(3):
                await Runner(database).claim(10)
                await database.execute("UPDATE lane_started SET at = at - interval '2 hours'")
                await look(database, 1.0)
                assert await database.fetch("SELECT FROM lane_started") == []
            await Runner(database).claim(10)
            lane = await look(database, 1.0)
            assert lane.rate == pytest.approx(LEAN * 10, rel=0.15)

    asyncio.run(scenario())
