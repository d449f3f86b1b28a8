"""Jobs that expire before they start are counted as demand: once each, whoever moves them on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from harness.batches import new_batch, pools, record
from harness.ledger import LANE, Runner, elapse, make_owner, opened, state, submit_many, submit_one
from harness.ledger_commands import COMMANDS
from harness.ledger_states import placed, placed_again
from harness.postgres import query
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.database import Database
from headrace.histograms import HIGHEST, LARGEST_COST, LOWEST, Histogram, cost_bucket
from headrace.ledger import batches, cancelling, reading, retrying
from headrace.ledger.settling import settle
from headrace.usage import storing
from headrace.usage.counts import Series
from headrace.usage.reading import read

G = "gateway:g"
REASON = "queue-deadline-exceeded"
NOTED = "SELECT coalesce(sum(number), 0)::integer FROM usage_expired"
BUCKETS = (
    "SELECT cost_bucket_v1(c) AS cost, value_bucket_v1(v) AS value"
    " FROM unnest(%s::double precision[], %s::double precision[]) AS u (c, v)"
)


async def added(database: Database) -> dict[Series, Histogram]:
    """What is counted of jobs that expired, once all notes are added."""
    while await storing.add_expired(database, 500):
        pass
    now = datetime.now(UTC)
    found = await read(database, now - timedelta(hours=1), now + timedelta(hours=1))
    assert all((one.series.kind, one.series.reason, one.device) == ("expired", REASON, "") for one in found)
    return {one.series: one.histogram for one in found}


async def number(database: Database) -> int:
    """How many expired jobs are counted by now."""
    return sum(one.number for one in (await added(database)).values())


async def by_a_pass(database: Database, job_id: str, owner: str) -> None:
    await settle(database, G)


async def by_a_reader(database: Database, job_id: str, owner: str) -> None:
    await reading.find(database, job_id, owner)


async def by_doing_it_again(database: Database, job_id: str, owner: str) -> None:
    await retrying.original(database, job_id, owner, "key:k")


WAYS: list[Callable[[Database, str, str], Awaitable[None]]] = [by_a_pass, by_a_reader, by_doing_it_again]


@pytest.mark.parametrize("first", WAYS)
def test_a_job_that_expires_counts_once(
    database_url: str, first: Callable[[Database, str, str], Awaitable[None]]
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database)
            job_id = await submit_one(database, owner, cost=100.0, queue_s=60.0)
            await submit_one(database, owner)
            await elapse(database, 60, job_id)
            assert len(await runner.claim(2)) == 1  # a claim passes it over
            assert await number(database) == 0
            for way in (first, *WAYS):
                await way(database, job_id, owner)
            assert await state(database, job_id) == "expired"
            ((series, histogram),) = (await added(database)).items()
            assert series == Series(LANE, "expired", REASON, 128)
            assert histogram.number == 1
            assert 60 <= histogram.total < 90
            assert histogram.quantile(0.5) == pytest.approx(histogram.total, rel=0.09)

    asyncio.run(scenario())


def test_jobs_of_a_batch_that_expire_count_once(database_url: str) -> None:
    async def scenario() -> None:
        async with pools(database_url) as (long, database):
            owner = await make_owner(database)
            batch = new_batch(owner, 4, queue_s=10.0)
            await record(long, database, batch)
            await Runner(database).claim_one()
            await elapse(database, 10)
            for _ in range(2):
                await batches.find(database, batch.batch_id, owner, actor=G)
            assert await batches.counts(database, batch.batch_id) == {"expired": 3, "running": 1}
            assert await number(database) == 3

    asyncio.run(scenario())


def test_nothing_else_that_becomes_of_a_job_counts(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            for job_state in ("succeeded", "failed", "cancelled"):
                await placed(database, job_state)
            waiting = await placed(database, "queued")
            await cancelling.cancel(database, waiting.job.job_id, waiting.job.owner_id, "key:k")
            for start in (placed(database, "running"), placed_again(database)):
                started = await start
                await elapse(database, 100, started.job.job_id)
                settled = await settle(database, G)
                assert settled is not None
                assert settled.expired == 0
                assert await state(database, started.job.job_id) == "failed"
            assert await number(database) == 0

    asyncio.run(scenario())


def test_a_job_counts_for_the_function_that_it_was_moved_to(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            made = await placed(database, "queued")
            assert await COMMANDS["move to another lane"].give(database, made) == "moved"
            ((lane,),) = query(database_url, "SELECT function FROM job")
            await elapse(database, 50)
            await settle(database, G)
            assert [series.function for series in await added(database)] == [lane] != [LANE]

    asyncio.run(scenario())


def test_a_pass_notes_what_expires_together_and_nothing_if_it_is_undone(database_url: str) -> None:
    """A note for each function, bucket of cost and bucket of the wait."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 300, queue_s=10.0, cost=3.0)
            await submit_many(database, owner, 150, queue_s=10.0, cost=4.0)
            await submit_many(database, owner, 50, queue_s=10.0, cost=5.0)
            await elapse(database, 91)  # the bucket ends at 107 s
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute("SELECT settle_v2('gateway:other', NULL, 500)")
                await other.rollback()
            assert query(database_url, NOTED) == [(0,)]
            await settle(database, G)
            notes = "SELECT cost, bucket, number FROM usage_expired ORDER BY cost"
            assert query(database_url, notes) == [(4, 26, 450), (8, 26, 50)]
            assert [histogram.number for histogram in (await added(database)).values()] == [450, 50]

    asyncio.run(scenario())


def test_whoever_adds_to_the_counts_stops_no_expiry(database_url: str) -> None:
    """Somebody holds the hour's row, as each process does while it adds what it has counted."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            first, second = await submit_many(database, owner, 2, queue_s=10.0)
            await elapse(database, 10, first)
            await settle(database, G)
            assert await number(database) == 1
            await elapse(database, 10, second)
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute("SELECT FROM usage_changed FOR UPDATE")
                await other.execute("SELECT FROM usage_minute FOR UPDATE")
                async with asyncio.timeout(5):
                    await settle(database, G)
                assert await state(database, second) == "expired"
            assert await number(database) == 2

    asyncio.run(scenario())


def test_notes_are_added_once_though_several_add_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, 8) as database:
            owner = await make_owner(database)
            jobs = await submit_many(database, owner, 60, queue_s=10.0)
            await elapse(database, 10)

            async def reads() -> None:
                await asyncio.gather(*(reading.find(database, job_id, owner) for job_id in jobs[:30]))

            async def adds() -> None:
                for _ in range(10):
                    await storing.add_expired(database, 3)

            await asyncio.gather(reads(), settle(database, G), settle(database, "gateway:h"), adds(), adds())
            await settle(database, G)
            assert await number(database) == 60
            assert query(database_url, NOTED) == [(0,)]

            # What somebody is adding is left to it.
            await submit_one(database, owner, queue_s=0.0)
            await settle(database, G)
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute("SELECT add_expired_v1(5)")
                async with asyncio.timeout(5):
                    assert await storing.add_expired(database, 5) == 0
                await other.rollback()
            assert await number(database) == 61

    asyncio.run(scenario())


def test_what_is_added_late_is_summed_up_again(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            for _ in range(2):
                await submit_many(database, owner, 3, queue_s=0.0)
                await settle(database, G)
                query(database_url, "UPDATE usage_expired SET at = '2024-03-01 10:07Z'")
                assert await storing.add_expired(database, 500) > 0
                assert await storing.sum_up(database) == 1
            hours = "SELECT at, number, kind FROM usage_hour"
            assert query(database_url, hours) == [(datetime(2024, 3, 1, 10, tzinfo=UTC), 6, "expired")]

    asyncio.run(scenario())


costs = st.floats(0, 1e18) | st.integers(0, 60).map(lambda n: 2.0**n)
values = st.integers(0, 10**13).map(lambda us: us / 1e6) | st.integers(-25, 40).map(lambda n: 2.0**n)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(costs, values), min_size=1, max_size=100))
def test_the_ledgers_buckets_are_those_of_the_histograms(
    shared_url: str, pairs: list[tuple[float, float]]
) -> None:
    found = query(shared_url, BUCKETS, [cost for cost, _ in pairs], [value for _, value in pairs])
    wanted: list[tuple[int, int]] = []
    for cost, value in pairs:
        histogram = Histogram()
        histogram.observe(value)
        wanted.extend((cost_bucket(cost), bucket) for bucket in histogram.counts)
    assert found == wanted
    ends = query(shared_url, BUCKETS, [LARGEST_COST + 1.0, 0.0], [1e12, 0.0])
    assert ends == [(LARGEST_COST, HIGHEST), (0, LOWEST)]
