"""What was kept long enough is forgotten, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from harness import postgres
from harness.ledger import Runner, check_ledger, elapse, make_owner, new_job, opened, outcome, submit_many
from harness.ledger_states import STATES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.database import Database
from headrace.domain import FINAL, State
from headrace.ledger import cancelling, reading, retention
from headrace.ledger.submission import submit

EMPTIED: list[LiteralString] = [
    "DELETE FROM job",
    "DELETE FROM job_event",
    "DELETE FROM idempotency",
    "DELETE FROM lane_owner",
    "DELETE FROM procrastinate_jobs",
]
COUNTS = (
    "SELECT (SELECT count(*) FROM job) AS jobs,"
    " (SELECT count(*) FROM job_event v WHERE NOT EXISTS (SELECT FROM job j WHERE j.id = v.job_id))"
    " AS orphans"
)


async def one(database: Database, statement: LiteralString, *parameters: object) -> Any:
    """The first column of the only row."""
    (row,) = await database.fetch(statement, list(parameters) or None)
    return next(iter(row.values()))


async def ended(database: Database, owner: str, count: int = 1, **changes: Any) -> list[str]:
    """Jobs that have just succeeded; their results are kept for an hour."""
    job_ids = await submit_many(database, owner, count, **changes)
    runner = Runner(database)
    states = await runner.finish(*(outcome(job) for job in await runner.claim(count)))
    assert list(states.values()) == ["succeeded"] * count
    return job_ids


def test_result_goes_and_its_job_stays(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            old, new = await ended(database, owner, 2)
            await elapse(database, 3601, old)
            expired = await reading.find(database, old, owner)
            assert expired is not None
            assert (expired.small_result, expired.result_expired) == (None, True)
            assert await retention.prune_results(database, 10) == 1
            assert await retention.prune_results(database, 10) == 0
            gone = await reading.find(database, old, owner)
            assert gone is not None
            assert (gone.state, gone.result_size, gone.result_expired) == ("succeeded", None, True)
            assert gone.result_expires_at == expired.result_expires_at
            assert await reading.result(database, new, owner) == b'"done"'

    asyncio.run(scenario())


def test_job_goes_with_its_events(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            old, new = await ended(database, owner, 2)
            await elapse(database, 5000, old)
            assert await retention.prune_jobs(database, 5001, 10) == 0
            assert await retention.prune_jobs(database, 4999, 10) == 1
            assert await reading.find(database, old, owner) is None
            assert await reading.events(database, old) == []
            assert (await check_ledger(database)).keys() == {new}

    asyncio.run(scenario())


def test_job_stays_as_long_as_its_result(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await ended(database, await make_owner(database))
            await elapse(database, 3590)
            assert await retention.prune_jobs(database, 1, 10) == 0
            await elapse(database, 11)
            assert await retention.prune_jobs(database, 1, 10) == 1

    asyncio.run(scenario())


def test_job_stays_as_long_as_its_key(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            (job_id,) = await ended(database, owner, idempotency_key="k")
            await elapse(database, 4000)
            assert await retention.prune_jobs(database, 1, 10) == 0
            (replayed,) = await submit(database, [new_job(owner, idempotency_key="k")])
            assert (replayed.outcome, replayed.job_id) == ("replayed", job_id)
            await elapse(database, 86_400 - 4000 + 1)
            assert await retention.prune_jobs(database, 1, 10) == 1

    asyncio.run(scenario())


def test_job_whose_key_stands_for_another_goes(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            (old,) = await ended(database, owner, idempotency_key="k")
            await elapse(database, 86_401)
            (new,) = await submit(database, [new_job(owner, idempotency_key="k")])
            assert new.outcome == "accepted"
            assert await retention.prune_jobs(database, 1, 10) == 1
            assert await reading.find(database, old, owner) is None

    asyncio.run(scenario())


def test_pruned_key_makes_a_new_job(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            (first,) = await submit(database, [new_job(owner, idempotency_key="k")])
            (other,) = await submit(database, [new_job(owner, idempotency_key="l")])
            assert await retention.prune_keys(database, 10) == 0
            await elapse(database, 86_401, first.job_id)
            assert await retention.prune_keys(database, 10) == 1
            again = await submit(
                database, [new_job(owner, idempotency_key="k"), new_job(owner, idempotency_key="l")]
            )
            assert [receipt.outcome for receipt in again] == ["accepted", "replayed"]
            assert again[1].job_id == other.job_id

    asyncio.run(scenario())


def test_batch_goes_after_its_last_job(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            made = (
                "INSERT INTO batch (id, owner_id, function, size, created_at)"
                " SELECT b.id, %s::uuid, 'fish', 1, clock_timestamp() - make_interval(secs => b.age)"
                " FROM (VALUES (gen_random_uuid(), 5000), (gen_random_uuid(), 5000), (gen_random_uuid(), 10))"
                " AS b (id, age) RETURNING id::text AS id"
            )
            used, empty, young = [row["id"] for row in await database.fetch(made, [owner])]
            (job_id,) = await ended(database, owner)
            await database.execute(
                "UPDATE job SET batch_id = %s::uuid, batch_index = 0 WHERE id = %s::uuid", [used, job_id]
            )
            left = "SELECT array_agg(id::text) AS ids FROM batch"
            assert await retention.prune_batches(database, 4000, 10) == 1
            assert set(await one(database, left)) == {used, young}
            await elapse(database, 4000)
            assert await retention.prune_jobs(database, 1, 10) == 1
            assert await retention.prune_batches(database, 4000, 10) == 1
            assert await one(database, left) == [young]
            assert empty not in await one(database, left)

    asyncio.run(scenario())


def test_flow_goes_once_its_lane_has_passed_it(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            idle, busy = await make_owner(database), await make_owner(database)
            await submit_many(database, idle, 1)
            await submit_many(database, busy, 3, cost=5.0)
            assert await retention.prune_flows(database, 10) == 0
            assert len(await Runner(database).claim(3)) == 3
            assert await retention.prune_flows(database, 10) == 1
            assert await one(database, "SELECT array_agg(owner_id::text) FROM lane_owner") == [busy]
            # It starts again from where the lane is, which is where it would have been put anyway.
            before = await one(database, "SELECT virtual_time FROM lane")
            await submit_many(database, idle, 1, cost=3.0)
            assert await one(database, "SELECT min(last_tag) FROM lane_owner") == before + 3

    asyncio.run(scenario())


def test_audit_goes_oldest_first(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await database.execute("TRUNCATE audit")
            await database.execute(
                "INSERT INTO audit (at, actor, action, subject)"
                " SELECT clock_timestamp() - make_interval(secs => 1000 - n), 'o', 'key.create', n::text"
                " FROM generate_series(1, 20) AS n"
            )
            assert [await retention.prune_audit(database, 989.5, limit) for limit in (4, 4, 4, 4)] == [
                4,
                4,
                2,
                0,
            ]
            assert await one(database, "SELECT min(subject::integer) FROM audit") == 11

    asyncio.run(scenario())


def test_what_is_held_is_left_and_not_waited_for(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            jobs = await ended(database, owner, 3)
            await submit(database, [new_job(owner, idempotency_key=key) for key in "kl"])
            await elapse(database, 86_401)
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute("SELECT FROM job WHERE id = %s FOR UPDATE", [jobs[0]])
                await other.execute("SELECT FROM idempotency WHERE key = 'k' FOR UPDATE")
                await other.execute("SELECT FROM lane_owner FOR UPDATE")
                async with asyncio.timeout(5):
                    assert await retention.prune_results(database, 10) == 2
                    assert await retention.prune_jobs(database, 1, 10) == 2
                    assert await retention.prune_keys(database, 10) == 1
                    assert await retention.prune_flows(database, 10) == 0
            assert await retention.prune_results(database, 10) == 1
            assert await retention.prune_jobs(database, 1, 10) == 1
            assert await retention.prune_keys(database, 10) == 1

    asyncio.run(scenario())


def test_two_at_once_forget_each_job_once(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await ended(database, await make_owner(database), 60)
            await elapse(database, 4000)
            counts = await asyncio.gather(*(retention.prune_jobs(database, 1, 7) for _ in range(16)))
            assert sum(counts) == 60
            assert await database.fetch(COUNTS) == [{"jobs": 0, "orphans": 0}]

    asyncio.run(scenario())


@pytest.fixture
def shared(clones: postgres.Clones) -> Iterator[tuple[asyncio.Runner, Database]]:
    with clones.migrated() as url, asyncio.Runner() as runner:
        database = runner.run(Database.open(url, application_name="headrace-test", max_size=2))
        try:
            yield runner, database
        finally:
            runner.run(database.close())


FACTS = (
    "SELECT j.id::text AS id, j.state, j.input, j.result,"
    " j.result_expires_at <= clock_timestamp() AS expired,"
    " j.finished_at <= clock_timestamp() - make_interval(secs => %s) AS is_old,"
    " i.expires_at > clock_timestamp() AS is_keyed FROM job j LEFT JOIN idempotency i ON i.job_id = j.id"
)
UNTOLD = "SELECT count(*) FROM job j WHERE NOT EXISTS (SELECT FROM job_event v WHERE v.job_id = j.id)"
ages = st.sampled_from([0.0, 10.0, 700.0, 5000.0, 100_000.0])


async def aged(database: Database, owner: str, lane: str, state: State, age: float, *, keyed: bool) -> None:
    """A job in this state, for so long, in a lane of its own."""
    key = lane if keyed else None
    (job_id,) = await submit_many(database, owner, 1, function=lane, idempotency_key=key, attempts=1)
    if state == "expired":
        await elapse(database, 61, job_id)
        await reading.find(database, job_id, owner)
    elif state != "queued":
        runner = Runner(database)
        job = await runner.claim_one(function=lane)
        if state in {"cancel_requested", "cancelled"}:
            await cancelling.cancel(database, job_id, owner, "key:k")
        if state in FINAL:
            await runner.end(job, "failed" if state == "failed" else "succeeded")
    await elapse(database, age, job_id)
    (standing,) = (await reading.standings(database, [job_id])).values()
    assert standing[0] == state


async def forgotten(database: Database, kind: str, after_s: float, limit: int) -> int:
    match kind:
        case "results":
            return await retention.prune_results(database, limit)
        case "jobs":
            return await retention.prune_jobs(database, after_s, limit)
        case "keys":
            return await retention.prune_keys(database, limit)
        case _:
            return await retention.prune_flows(database, limit)


@given(
    jobs=st.lists(st.tuples(st.sampled_from(STATES), ages, st.booleans()), max_size=6),
    after_s=ages,
    commands=st.lists(
        st.tuples(st.sampled_from(["results", "jobs", "jobs", "keys", "flows"]), st.integers(0, 6)),
        min_size=1,
        max_size=6,
    ),
)
@settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_only_what_is_final_and_past_its_time_goes(
    shared: tuple[asyncio.Runner, Database],
    jobs: list[tuple[State, float, bool]],
    after_s: float,
    commands: list[tuple[str, int]],
) -> None:
    async def scenario(database: Database) -> None:
        for table in EMPTIED:
            await database.execute(table)
        owner = await make_owner(database)
        for number, (state, age, keyed) in enumerate(jobs):
            await aged(database, owner, f"lane{number}", state, age, keyed=keyed)
        before = {row["id"]: row for row in await database.fetch(FACTS, [after_s])}
        pruned = 0
        for kind, limit in commands:
            count = await forgotten(database, kind, after_s, limit)
            assert 0 <= count <= limit
            pruned += count if kind == "jobs" else 0
        after = {row["id"]: row for row in await database.fetch(FACTS, [after_s])}
        assert len(before) - len(after) == pruned
        for job_id in before.keys() - after.keys():
            was = before[job_id]
            assert was["state"] in FINAL, was
            assert was["is_old"], was
            assert was["expired"] is not False, was
            assert not was["is_keyed"], was
        for job_id, row in after.items():
            was = before[job_id]
            assert (row["state"], row["input"]) == (was["state"], was["input"])
            assert row["result"] == was["result"] or (row["result"] is None and was["expired"])
            assert row["is_keyed"] == was["is_keyed"] or (row["is_keyed"] is None and not was["is_keyed"])
        assert await database.fetch(COUNTS) == [{"jobs": len(after), "orphans": 0}]
        assert await one(database, UNTOLD) == 0

    runner, database = shared
    runner.run(scenario(database))


EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"
PRUNES: list[LiteralString] = [
    "SELECT prune_results_v2(5)",
    "SELECT prune_jobs_v2(60, 5)",
    "SELECT prune_items_v1(60, 5)",
    "SELECT prune_keys_v1(5)",
    "SELECT prune_batches_v1(60, 5)",
    "SELECT prune_audit_v1(60, 5)",
]


def test_pruning_reads_little_whatever_else_is_kept(clones: postgres.Clones) -> None:
    """In pages: time would say more about the machine. The plans are those of empty tables."""

    async def fill(url: str) -> None:
        async with opened(url) as database:
            owner = await make_owner(database)
            for _ in range(3):
                await ended(database, owner, 500)
            await submit_many(database, owner, 100)
            await database.execute(
                "INSERT INTO idempotency (owner_id, function, key, job_id, digest, expires_at)"
                " SELECT owner_id, function, id::text, id, digest, now() + interval '1 day' FROM job"
            )
            await database.execute(
                "INSERT INTO job_items (job_id, sequence, attempt, number, bytes, items)"
                " SELECT j.id, n, 1, n, 1, '{1}' FROM job j, generate_series(1, 9) AS n"
            )
            await database.execute(
                "INSERT INTO batch (id, owner_id, function, size)"
                " SELECT j.id, j.owner_id, j.function, 1 FROM job j WHERE j.finished_at IS NOT NULL"
            )
            await database.execute(
                "UPDATE job j SET batch_id = j.id, batch_index = 0 WHERE finished_at IS NOT NULL"
            )
            await database.execute(
                "INSERT INTO audit (actor, action, subject) SELECT 'o', 'job.cancel', id::text FROM job"
            )

    with clones.migrated() as url, psycopg.connect(url, autocommit=True) as session:
        for statement in PRUNES * 8:  # more than Postgres tries before it keeps a plan
            session.execute(statement)
        asyncio.run(fill(url))
        for statement in PRUNES:
            explained = session.execute(f"{EXPLAIN} {statement}".encode()).fetchone()
            assert explained is not None
            plan = explained[0][0]["Plan"]
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 100, statement
