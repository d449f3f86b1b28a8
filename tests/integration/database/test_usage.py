"""Counts of usage: flushed by several processes, merged, summed up, read and forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import pytest
from harness.postgres import query

from headrace.database import Database
from headrace.errors import DatabaseUnavailable
from headrace.histograms import Histogram
from headrace.usage import reading, recording, storing
from headrace.usage.counts import Series
from headrace.usage.reading import read, together
from headrace.usage.recording import Recorder

HOUR = datetime(2024, 3, 1, 10, tzinfo=UTC)
LATER = HOUR + timedelta(hours=2)
Scenario = Callable[[Database], Coroutine[Any, Any, None]]


class Clock:
    """One that is set by hand."""

    def __init__(self, at: datetime = HOUR) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at.timestamp()

    def passes(self, **span: float) -> None:
        self.at += timedelta(**span)


def run(url: str, scenario: Scenario) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), await Database.open(url, application_name="headrace-test") as opened:
            await scenario(opened)

    asyncio.run(limited())


def recorder(clock: Clock, device: str = "cpu") -> Recorder:
    return Recorder(lambda: device, clock)


async def counts(
    database: Database, *, since: datetime = HOUR, until: datetime = LATER, **options: Any
) -> dict[tuple[datetime, Series, str], Histogram]:
    return {
        (one.at, one.series, one.device): one.histogram
        for one in await read(database, since, until, **options)
    }


def test_what_processes_count_in_a_minute_is_one_row_of_each_series(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        clock = Clock()
        processes = [recorder(clock) for _ in range(3)]
        for number, process in enumerate(processes, start=1):
            process.observe("embed", "execution", 0.25 * number, cost=3.0)
            process.observe("embed", "execution", 0.25, cost=100.0)
            process.observe("embed", "failure", 1.0, reason="transient")
        await asyncio.gather(*(process.end(database) for process in processes))
        found = await counts(database, step=timedelta(minutes=1))
        assert {series: histogram.number for (_, series, _), histogram in found.items()} == {
            Series("embed", "execution", "", 4): 3,
            Series("embed", "execution", "", 128): 3,
            Series("embed", "failure", "transient", 0): 3,
        }
        priced = found[HOUR, Series("embed", "execution", "", 4), "cpu"]
        assert (priced.total, priced.counts) == (1.5, {-8: 1, -4: 1, -2: 1})

    run(database_url, scenario)
    assert query(database_url, "SELECT count(*) FROM usage_minute") == [(3,)]


def test_what_is_sent_twice_counts_once(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply was lost: whether the statement took effect isn't known."""

    async def scenario(database: Database) -> None:
        process = recorder(Clock())
        process.observe("embed", "served", 0.5)
        add = storing.add

        async def lost(*arguments: Any) -> bool:
            await add(*arguments)
            raise DatabaseUnavailable("the reply was lost")

        with monkeypatch.context() as patch:
            patch.setattr(recording.storing, "add", lost)
            await process.end(database)
        process.observe("embed", "served", 0.5)
        await process.end(database)
        assert sum(one.number for one in (await counts(database)).values()) == 2

    run(database_url, scenario)


def test_minutes_wait_for_postgres_each_on_its_own(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(database: Database) -> None:
        clock = Clock()
        process = recorder(clock)
        for _ in range(3):
            process.observe("embed", "queue", 0.001)
            clock.passes(minutes=1)
            process._turn()
        with monkeypatch.context() as patch:
            patch.setattr(recording, "MOST_MINUTES", 2)
            process.observe("embed", "queue", 0.001)
            clock.passes(minutes=1)
            process._turn()  # an outage so long that the first minutes are lost
        await process.end(database)
        found = await counts(database, step=timedelta(minutes=1))
        assert [at.minute for at, _, _ in found] == [2, 3]

    run(database_url, scenario)


def test_a_minute_is_sent_when_it_is_over(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_SPREAD_S", 0.0)

    async def scenario(database: Database) -> None:
        clock = Clock(HOUR + timedelta(seconds=59.95))
        process = recorder(clock)
        process.observe("embed", "queue", 0.001)
        running = asyncio.create_task(process.run(database))
        await asyncio.sleep(0)
        clock.passes(seconds=0.1)
        while not await counts(database):
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})

    run(database_url, scenario)


def test_hours_are_summed_up_once_and_again_when_something_comes_late(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        clock = Clock()
        process = recorder(clock)
        for _ in range(60):
            process.observe("embed", "execution", 0.25)
            process.observe("embed", "execution", 2.0)
            clock.passes(minutes=1)
            process._turn()
        await process.end(database)
        before = await counts(database)
        assert await storing.sum_up(database) == 1
        assert await storing.sum_up(database) == 0
        hours = query(database_url, "SELECT at, number, total, buckets FROM usage_hour")
        assert hours == [(HOUR, 120, 135.0, {"-8": 60, "4": 60})]
        after = await counts(database)
        assert {key: one.counts for key, one in after.items()} == {
            key: one.counts for key, one in before.items()
        }
        late = recorder(Clock(HOUR + timedelta(minutes=7)))
        late.observe("embed", "execution", 2.0)
        await late.end(database)
        assert [one.number for one in (await counts(database)).values()] == [121]  # from the minutes
        assert await storing.sum_up(database) == 1
        assert query(database_url, "SELECT number FROM usage_hour") == [(121,)]

    run(database_url, scenario)


def test_the_present_hour_is_not_summed_up(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        process = Recorder()
        process.observe("embed", "execution", 0.25)
        await process.end(database)
        assert await storing.sum_up(database) == 0

    run(database_url, scenario)


def test_an_hour_that_somebody_adds_to_is_left_to_the_next_time(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        for _ in range(2):
            process = recorder(Clock())
            process.observe("embed", "execution", 0.25)
            if await counts(database):
                async with database.transaction() as adding:
                    process._close()
                    rows = storing._rows(*process._over[0][:1], "cpu", process._over[0][1])
                    parameters = {
                        "source": process._source,
                        "sequence": 1,
                        "counts": storing.Jsonb(rows),
                    }
                    await adding.fetch(storing._SQL["add"], parameters)
                    assert await storing.sum_up(database) == 0
            else:
                await process.end(database)
        assert await storing.sum_up(database) == 1
        assert query(database_url, "SELECT number FROM usage_hour") == [(2,)]

    run(database_url, scenario)


def test_minutes_are_forgotten_once_they_are_summed_up_and_hours_when_they_are_old(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        clock = Clock()
        process = recorder(clock)
        for _ in range(5):
            process.observe("embed", "execution", 0.25)
            clock.passes(minutes=1)
            process._turn()
        await process.end(database)
        young = Recorder()
        young.observe("embed", "execution", 0.25)
        await young.end(database)
        week = timedelta(days=7).total_seconds()
        assert await storing.prune_minutes(database, week, 3) == 0  # not summed up yet
        await storing.sum_up(database)
        assert [await storing.prune_minutes(database, week, 3) for _ in range(3)] == [3, 2, 0]
        assert [one.number for one in (await counts(database)).values()] == [5]  # from the hour
        years = timedelta(days=36_500).total_seconds()
        assert await storing.prune_hours(database, years, 10) == 0
        assert await storing.prune_hours(database, week, 10) == 1
        assert await counts(database) == {}

    run(database_url, scenario)
    left = "SELECT (SELECT count(*) FROM usage_minute), (SELECT count(*) FROM usage_hour)"
    assert query(database_url, left) == [(1, 0)]


def test_counts_are_read_in_steps_of_one_function_or_all(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        clock = Clock()
        process = recorder(clock, "cuda")
        for minute in range(10):
            process.observe("embed", "execution", 0.25)
            process.observe("echo", "served", 0.01)
            if minute == 9:
                process.observe("echo", "refused", 0.01, reason="busy")
            clock.passes(minutes=1)
            process._turn()
        await process.end(database)
        steps = await counts(database, step=timedelta(minutes=5), function="embed")
        assert {(at.minute, series.function): one.number for (at, series, _), one in steps.items()} == {
            (0, "embed"): 5,
            (5, "embed"): 5,
        }
        found = await read(database, HOUR, HOUR + timedelta(minutes=10))
        assert together(found, lambda one: one.series.function == "echo").number == 11
        assert {one.device for one in found} == {"cuda"}
        assert await read(database, LATER, LATER + timedelta(hours=1)) == []

    run(database_url, scenario)


def test_processes_that_add_to_the_same_rows_do_not_lock_each_other_out(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        async def process(number: int) -> None:
            clock = Clock(HOUR + timedelta(minutes=59))
            one = recorder(clock)
            names = [f"f{at}" for at in range(20)]
            for _ in range(2):  # of two hours
                for name in names if number % 2 else reversed(names):
                    one.observe(name, "execution", 0.25)
                clock.passes(minutes=1)
                one._turn()
            await one.end(database)

        await asyncio.gather(*(process(number) for number in range(8)), storing.sum_up(database))
        assert {one.number for one in (await counts(database)).values()} == {16}

    run(database_url, scenario)


# ---------------------------------------------------------------------- hours, and backlogs of them

FILL: LiteralString = (
    "INSERT INTO usage_minute (at, function, kind, reason, device, cost, number, total, buckets)"
    " SELECT %s::timestamptz + make_interval(mins => m), 'f' || f, 'execution', '', 'cpu', 1, 3 + m, m,"
    " jsonb_build_object('-1', 1, m %% 7, 2, m %% 3 + 7, m)"
    " FROM generate_series(0, %s) AS m, generate_series(1, 3) AS f"
)
MARK: LiteralString = (
    "INSERT INTO usage_changed SELECT DISTINCT date_trunc('hour', at, 'UTC') FROM usage_minute"
)


def test_a_backlog_is_worked_off_hour_by_hour(database_url: str) -> None:
    """What was summed up stays so, whatever becomes of the next statement."""

    async def scenario(database: Database) -> None:
        await database.execute(FILL, (HOUR, 4 * 60 - 1))
        await database.execute(MARK)
        wanted = await counts(database, step=timedelta(minutes=30), until=HOUR + timedelta(hours=4))
        for left in (3, 2, 1, 0):
            assert await storing.sum_up(database) == 1
            assert query(database_url, "SELECT count(*) FROM usage_changed") == [(left,)]
            oldest = "SELECT count(DISTINCT at), max(at) FROM usage_hour"
            assert query(database_url, oldest) == [(4 - left, HOUR + timedelta(hours=3 - left))]
        assert await storing.sum_up(database) == 0
        hourly = await counts(database, step=timedelta(hours=1), until=HOUR + timedelta(hours=4))
        assert len(hourly) == 12
        for (at, series, device), histogram in hourly.items():
            halves = [wanted[at + timedelta(minutes=30 * half), series, device] for half in range(2)]
            assert (histogram.number, histogram.total) == tuple(
                sum(getattr(half, name) for half in halves) for name in ("number", "total")
            )
            halves[0].add(halves[1])
            assert histogram.counts == halves[0].counts

    run(database_url, scenario)


def test_many_buckets_are_not_merged_by_a_call_for_each_row(database_url: str) -> None:
    """An hour of a large site has tens of thousands of rows, and a call of a function in SQL takes 40 us."""
    aggregates = (
        "SELECT a.aggfnoid::text FROM pg_aggregate a JOIN pg_proc p ON p.oid = a.aggtransfn"
        " JOIN pg_language l ON l.oid = p.prolang WHERE l.lanname IN ('sql', 'plpgsql')"
    )
    assert query(database_url, aggregates) == []


@pytest.mark.parametrize("step", [None, timedelta(hours=1), timedelta(hours=2), timedelta(days=1)])
def test_hours_and_minutes_are_read_as_one(database_url: str, step: timedelta | None) -> None:
    """Parts of hours at both ends, one hour that has changed, and one without buckets."""
    since, until = HOUR + timedelta(minutes=20), HOUR + timedelta(hours=3, minutes=40)

    async def scenario(database: Database) -> None:
        await database.execute(FILL, (HOUR, 4 * 60 - 1))
        before = await counts(database, step=step, since=since, until=until)
        assert sum(one.number for one in before.values()) == 3 * sum(3 + m for m in range(20, 220))
        await database.execute(MARK)
        while await storing.sum_up(database):
            pass
        changed = "INSERT INTO usage_changed VALUES (%s)"
        await database.execute(changed, (HOUR + timedelta(hours=1),))
        after = await counts(database, step=step, since=since, until=until)
        assert {key: (one.number, one.total, one.counts) for key, one in after.items()} == {
            key: (one.number, one.total, one.counts) for key, one in before.items()
        }
        assert list(after) == list(before) == sorted(before)

    with_minutes_kept(database_url, scenario)


def with_minutes_kept(url: str, scenario: Scenario) -> None:
    """As `run`, where minutes of any age are there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MINUTES_KEPT", timedelta(days=36_500))
        run(url, scenario)


def test_what_is_older_than_minutes_are_kept_is_read_by_whole_hours(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        for minute in (10, 40):
            process = recorder(Clock(HOUR + timedelta(minutes=minute)))
            process.observe("embed", "served", 0.5)
            await process.end(database)
        await storing.sum_up(database)
        assert await storing.prune_minutes(database, timedelta(days=7).total_seconds(), 9) == 2
        half = HOUR + timedelta(minutes=30)
        for since, until in ((half, LATER), (HOUR, half), (HOUR, half + timedelta(minutes=30)), (half, half)):
            (found,) = await read(database, since, until)
            assert (found.at, found.histogram.number) == (HOUR, 2)
        assert await read(database, half, LATER, step=timedelta(minutes=1)) == []  # nothing is kept of it
        young = datetime.now(UTC) - timedelta(days=6)
        assert reading._widened(young, young, young - timedelta(hours=1)) == (young, young)

    run(database_url, scenario)


@pytest.mark.parametrize("seconds", [0, 59, 90, 90 * 60, 3601, -60])
def test_steps_that_minutes_and_hours_do_not_make_up_are_refused(database_url: str, seconds: int) -> None:
    async def scenario(database: Database) -> None:
        with pytest.raises(ValueError, match="whole minutes up to an hour, or whole hours"):
            await read(database, HOUR, LATER, step=timedelta(seconds=seconds))

    run(database_url, scenario)
