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

_RUNNER = (
    "INSERT INTO runner (id, pool, interfaces) VALUES (%s::uuid, 'default', '{}') ON CONFLICT DO NOTHING"
)
_REPORT = (
    "INSERT INTO runner_report (runner_id, reported_at, report) VALUES (%s::uuid, clock_timestamp(), %s)"
    " ON CONFLICT (runner_id) DO UPDATE SET report = excluded.report"
)
_BACK = "UPDATE lane_pace SET refreshed_at = refreshed_at - make_interval(secs => %s)"
_LOOKED = "UPDATE lane_look SET at = at - make_interval(secs => %s)"
_SERVES = "UPDATE runner SET interfaces = jsonb_build_object(%s::text, %s::text) WHERE id = %s::uuid"
_FORGET_SHORT = "UPDATE lane_started SET short_at = short_at - make_interval(secs => %s)"


async def report(database: Database, told: bytes | Report, runner_id: str | None = None) -> str:
    """What a live runner says: another one, or the one of an id."""
    runner_id = runner_id or str(uuid.uuid4())
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


async def backlogged(database: Database) -> bool:
    """Whether the last look found something that could be started."""
    return (await database.fetch("SELECT is_backlogged FROM lane_pace WHERE lane = %s", [LANE]))[0][
        "is_backlogged"
    ]


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
            told = Report(functions={LANE: Capacity(slots=4, mean_s=0.1)})
            await report(database, told, runner.session_id)
            await submit(database, [new_job(owner, cost=2.0) for _ in range(200)])
            await look(database)
            await runner.claim(6)
            # The first starts fill the slots.
            assert not (await look(database, 1.0)).is_measured
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
            told = Report(functions={LANE: Capacity(slots=4, mean_s=0.5)})
            await report(database, told, runner.session_id)
            await look(database)
            for _ in range(5):
                # Some wait at each look, but were not enough for the runner's slots in between.
                await submit_many(database, owner, 4)
                assert len(await runner.claim(6)) == 4
                await submit_many(database, owner, 1)
                lane = await look(database, 1.0)
                assert (lane.is_measured, lane.waiting) == (False, 1)
                assert lane.rate == pytest.approx(LEAN * 8)
                assert len(await runner.claim(6)) == 1
                await submit_many(database, owner, 1)
                await look(database, 1.0)
                assert len(await runner.claim(6)) == 1

    asyncio.run(scenario())


def test_a_lane_that_nobody_serves_has_none_any_more(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            serving = runner.session_id
            await report(database, Report(functions={LANE: Capacity(slots=4, mean_s=0.5)}), serving)
            await submit_many(database, owner, 50)
            await look(database)
            await runner.claim(1)
            await look(database, 1.0)
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
            one = runner.session_id
            await report(database, Report(functions={LANE: Capacity(slots=8, mean_s=0.5)}), one)
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
            await database.execute(_LOOKED, [10.0])
            assert await lanes.refresh(database)

    asyncio.run(scenario())


def test_sessions_that_ended_are_forgotten_without_a_trace(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 100)
            await look(database)
            for _ in range(4):
                await Runner(database).claim(10)
                await database.execute("UPDATE lane_started SET at = at - interval '2 hours'")
                await look(database, 1.0)
                assert await database.fetch("SELECT FROM lane_started") == []
            await Runner(database).claim(10)
            lane = await look(database, 1.0)
            assert lane.rate == pytest.approx(LEAN * 10, rel=0.15)

    asyncio.run(scenario())


def test_an_idle_lane_keeps_its_rate(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            told = Report(functions={LANE: Capacity(slots=10, mean_s=0.5)})
            await report(database, told, runner.session_id)
            await submit_many(database, owner, 60)
            await look(database)
            for _ in range(5):
                await runner.claim(10)
                before = await look(database, 0.5)
            await runner.claim(20)
            # A runner looks in vain each second, and lanes are looked at each half a second.
            for _ in range(30):
                await runner.claim(10)
                await submit_many(database, owner, 1)
                await look(database, 0.5)
                lane = await look(database, 0.5)
                assert await backlogged(database)
            assert before.rate == pytest.approx(lane.rate, rel=0.02)

    asyncio.run(scenario())


def test_a_session_that_never_started_anything_reports_that_it_is_idle(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await Runner(database).claim(3)
            (row,) = await database.fetch("SELECT starts, short_at FROM lane_started WHERE lane = %s", [LANE])
            assert row["starts"] == 0
            assert row["short_at"] is not None

    asyncio.run(scenario())


def test_what_nobody_could_start_is_no_backlog(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            told = Report(functions={LANE: Capacity(slots=4, mean_s=0.5)})
            await report(database, told, runner.session_id)
            await database.execute(_SERVES, [LANE, "i1", runner.session_id])
            await submit_many(database, owner, 5, interface="of-old")
            await submit_many(database, owner, 1)
            await database.execute("UPDATE job SET due_at = 'infinity' WHERE interface = 'i1'")
            lane = await look(database)
            assert lane.waiting == 6
            assert not await backlogged(database)
            await submit_many(database, owner, 1)
            await look(database)
            assert await backlogged(database)

    asyncio.run(scenario())


def test_a_runner_of_an_older_release_leaves_the_rate_to_reports(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            told = Report(functions={LANE: Capacity(slots=4, mean_s=0.5)})
            await report(database, told, runner.session_id)
            older = await report(database, told)
            await submit_many(database, owner, 50)
            await look(database)
            for _ in range(3):
                await runner.claim(5)
                lane = await look(database, 1.0)
            assert (lane.rate, lane.is_measured) == (pytest.approx(LEAN * 16), False)
            await database.execute("UPDATE runner SET draining = true WHERE id = %s::uuid", [older])
            assert (await look(database, 1.0)).is_measured

    asyncio.run(scenario())


def test_one_lane_breaks_no_other(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 1)
            await submit_many(database, owner, 1, function="bird")
            await look(database)
            await database.execute(
                "UPDATE lane_pace SET work = -1.7e308, is_backlogged = true, has_begun = true"
            )
            await database.execute("UPDATE lane_pace SET span_work = 0, work = 0 WHERE lane = 'bird'")
            await Runner(database).claim(1)
            await database.execute("UPDATE lane_started SET work = 1.7e308, short_at = NULL")
            await submit_many(database, owner, 1)
            await database.execute(_BACK, [1.0])
            assert await lanes.refresh(database, every_s=0)
            assert set(await lanes.lanes(database)) == {"bird"}

    asyncio.run(scenario())
