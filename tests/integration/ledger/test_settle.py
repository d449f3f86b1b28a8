from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from harness.ledger import (
    Runner,
    check_ledger,
    elapse,
    make_owner,
    opened,
    queue,
    row,
    state,
    story,
    submit_many,
    submit_one,
)

from headrace.database import Database
from headrace.ledger import cancelling, reading
from headrace.ledger.settling import Settled, settle

G = "gateway:g"
GATE = "SELECT pg_advisory_xact_lock(hashtextextended('headrace.settle', 0))"


async def moved(database: Database, *, reap: bool = True, limit: int = 500) -> tuple[int, int, int, int]:
    """Jobs that one pass has expired, failed, cancelled, requeued."""
    settled = await settle(database, G, reap=reap, limit=limit)
    assert settled is not None
    assert abs(datetime.now(UTC) - settled.now) < timedelta(seconds=60)
    return settled.expired, settled.failed, settled.cancelled, settled.requeued


def test_only_what_never_started_expires(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database, lease_s=1000)
            restarted, running = await submit_many(database, owner, 2, queue_s=10.0, total_s=100.0)
            lost_directly = await submit_one(
                database, owner, function="direct", attempt=1, charged=1, queue_s=10.0, total_s=100.0
            )
            for job in await runner.claim(2):
                if job.job_id == restarted:
                    await runner.end(job, "returned")
            waiting = await submit_one(database, owner, queue_s=10.0, total_s=100.0)
            await elapse(database, 9)
            assert await moved(database) == (0, 0, 0, 0)
            await elapse(database, 1)
            assert await moved(database) == (1, 0, 0, 0)
            kept = await row(database, waiting)
            assert (kept["state"], kept["error_category"]) == ("expired", "queue-deadline-exceeded")
            assert (await story(database, waiting))[-1] == ("expired", 0, G, "its queue deadline passed")
            assert [entry["args"]["job_id"] for entry in await queue(database)] == [lost_directly, restarted]
            await elapse(database, 90)
            assert await moved(database) == (0, 3, 0, 0)
            for job_id in (restarted, running, lost_directly):
                kept = await row(database, job_id)
                assert (kept["state"], kept["error_category"]) == ("failed", "deadline-exceeded")
            assert await moved(database) == (0, 0, 0, 0)
            assert await queue(database) == []
            await check_ledger(database)

    asyncio.run(scenario())


def test_lease_must_have_run_out_by_the_instant_that_was_looked_at(database_url: str) -> None:
    """The clock may have jumped since."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            held = await submit_one(database, owner)
            await Runner(database, lease_s=30).claim_one()
            waiting = await submit_one(database, owner, queue_s=31.0)
            settled = await settle(database, G)
            assert settled is not None
            await elapse(database, 60)  # by moving all instants back, so this one comes with them
            settled = await settle(database, G, seen_at=settled.now - timedelta(seconds=60))
            assert settled is not None
            assert (settled.expired, settled.requeued) == (1, 0)
            assert [await state(database, one) for one in (held, waiting)] == ["running", "expired"]
            settled = await settle(database, G, seen_at=settled.now)
            assert settled is not None
            assert settled.requeued == 1
            await check_ledger(database)

    asyncio.run(scenario())


def test_lease_that_ran_out_is_charged_until_no_start_is_left(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database, lease_s=30)
            job_id = await submit_one(database, await make_owner(database), attempts=2)
            for turn in (1, 2):
                claimed = await runner.claim_one()
                await elapse(database, 29)
                assert await moved(database) == (0, 0, 0, 0)
                await elapse(database, 1)
                assert await moved(database) == ((0, 0, 0, 1) if turn == 1 else (0, 1, 0, 0))
                kept = await row(database, job_id)
                assert (kept["attempt"], kept["charged"]) == (turn, turn)
                assert await runner.end(claimed) is None
                assert (await story(database, job_id))[-1][2:] == (
                    G,
                    f"the lease of runner {runner.session_id} ran out" + " (worker-lost)" * (turn == 2),
                )
                await elapse(database, 1)
            assert (kept["state"], kept["error_category"]) == ("failed", "attempts-exhausted")
            await check_ledger(database)

    asyncio.run(scenario())


def test_leases_count_only_where_they_may_but_deadlines_always(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database, lease_s=30)
            kept, late = await submit_many(database, owner, 2)
            await runner.claim(2)
            waiting = await submit_one(database, owner, queue_s=30.0)
            await elapse(database, 30)
            await elapse(database, 570, late)
            # What has to wait takes no room in a pass.
            await elapse(database, 1, kept)
            assert await moved(database, reap=False, limit=1) == (1, 1, 0, 0)  # as many that expire
            assert [await state(database, one) for one in (kept, late, waiting)] == [
                "running",
                "failed",
                "expired",
            ]
            assert await moved(database, reap=False) == (0, 0, 0, 0)
            assert await moved(database) == (0, 0, 0, 1)

    asyncio.run(scenario())


def test_job_whose_cancel_was_requested_is_cancelled_when_its_runner_is_gone(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database, lease_s=30)
            by_lease, by_deadline = await submit_many(database, owner, 2)
            claimed = await runner.claim(2)
            for job in claimed:
                await cancelling.cancel(database, job.job_id, owner, "key:k")
            await elapse(database, 600, by_deadline)
            assert await moved(database, reap=False) == (0, 0, 1, 0)
            await elapse(database, 30, by_lease)
            assert await moved(database, reap=False) == (0, 0, 0, 0)
            assert await moved(database) == (0, 0, 1, 0)
            for job_id in (by_lease, by_deadline):
                kept = await row(database, job_id)
                assert (kept["state"], kept["error_category"]) == ("cancelled", "job-cancelled")
            await check_ledger(database)

    asyncio.run(scenario())


def test_one_process_at_a_time(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            job_id = await submit_one(database, await make_owner(database), queue_s=1.0)
            await elapse(database, 1)
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute(GATE)
                async with asyncio.timeout(5):
                    assert await settle(database, G) is None
                assert await state(database, job_id) == "queued"
                await other.rollback()
            assert await moved(database) == (1, 0, 0, 0)

    asyncio.run(scenario())


def test_pass_is_bounded_and_takes_the_longest_overdue_first(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            jobs = await submit_many(database, owner, 5, queue_s=10.0)
            for place, job_id in enumerate(jobs):
                await elapse(database, 10 + place, job_id)
            assert await moved(database, limit=2) == (2, 0, 0, 0)
            assert [await state(database, job_id) for job_id in jobs] == ["queued"] * 3 + ["expired"] * 2
            assert await moved(database, limit=2) == (2, 0, 0, 0)
            assert await moved(database, limit=2) == (1, 0, 0, 0)

    asyncio.run(scenario())


def test_pass_leaves_what_others_hold(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            jobs = await submit_many(database, await make_owner(database), 3, queue_s=1.0)
            await elapse(database, 1)
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute("SELECT FROM job WHERE id = %s FOR UPDATE", [jobs[1]])
                async with asyncio.timeout(5):
                    assert await moved(database) == (2, 0, 0, 0)
            assert await moved(database) == (1, 0, 0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("job", "fate"),
    [("waiting", "expired"), ("running", "failed"), ("restarted", "failed"), ("cancelled", "cancelled")],
)
def test_reading_an_overdue_job_settles_it_at_once(database_url: str, job: str, fate: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database, lease_s=30)
            job_id = await submit_one(database, owner, queue_s=60.0, total_s=60.0)
            if job != "waiting":
                claimed = await runner.claim_one()
            if job == "restarted":
                await runner.end(claimed, "returned")
            if job == "cancelled":
                await cancelling.cancel(database, job_id, owner, "key:k")
            await elapse(database, 60)
            other = await make_owner(database)
            assert await reading.find(database, job_id, other) is None
            assert await state(database, job_id) in {"queued", "running", "cancel_requested"}
            # Also while a pass is under way elsewhere.
            async with await psycopg.AsyncConnection.connect(database_url) as elsewhere:
                await elsewhere.execute(GATE)
                found = await reading.find(database, job_id, owner, actor=G)
            assert found is not None
            assert (found.state, found.overdue) == (fate, None)
            assert (await story(database, job_id))[-1][2] == G
            await check_ledger(database)

    asyncio.run(scenario())


def test_reading_leaves_leases_to_maintenance(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner, runner = await make_owner(database), Runner(database, lease_s=30)
            job_id = await submit_one(database, owner)
            claimed = await runner.claim_one()
            await elapse(database, 31)
            found = await reading.find(database, job_id, owner)
            assert found is not None
            assert found.state == "running"
            assert await runner.end(claimed) == "succeeded"

    asyncio.run(scenario())


def test_passes_at_the_same_time_as_everything_else(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, 8) as database:
            owner = await make_owner(database)
            settled: list[Settled | None] = []

            async def runs(lease_s: float) -> None:
                runner = Runner(database, lease_s=lease_s)
                for _ in range(12):
                    await submit_many(database, owner, 4, attempts=20)
                    claimed = await runner.claim(4)
                    await runner.renew(*claimed[:3])
                    for job in claimed[:2]:
                        await runner.end(job)

            working = [asyncio.ensure_future(runs(lease_s)) for lease_s in (0.001, 0.001, 30.0)]
            while not all(task.done() for task in working):
                settled += await asyncio.gather(settle(database, G), settle(database, "gateway:h"))
            await asyncio.gather(*working)
            assert any(one is not None and one.requeued for one in settled)
            await check_ledger(database)

    asyncio.run(scenario())
