from __future__ import annotations

import asyncio
import uuid

import psycopg
from harness.ledger import (
    Runner,
    check_ledger,
    elapse,
    make_owner,
    opened,
    outcome,
    row,
    state,
    story,
    submit_many,
    submit_one,
    until_blocked,
)

from headrace.ledger import cancelling, settling
from headrace.ledger.execution import Held, Renewal


def nothing_new(renewal: Renewal) -> bool:
    return renewal == Renewal(lost=[], cancelled=[], given_back=0)


def test_renewal_extends_every_lease(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_many(database, await make_owner(database), 4)
            runner, other = Runner(database, lease_s=30), Runner(database, lease_s=30)
            held, others = await runner.claim(3), await other.claim_one()
            await elapse(database, 25)
            assert nothing_new(await runner.renew(*held))
            await elapse(database, 25)
            settled = await settling.settle(database, "gateway:g")
            assert settled is not None
            assert settled.requeued == 1
            assert [await state(database, job.job_id) for job in held] == ["running"] * 3
            assert await state(database, others.job_id) == "queued"
            assert (await other.renew(others)).lost == [others.job_id]
            assert nothing_new(await other.renew())
            await check_ledger(database)

    asyncio.run(scenario())


def test_lease_that_ran_out_unnoticed_is_renewed(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_one(database, await make_owner(database))
            runner = Runner(database)
            held = await runner.claim_one()
            await elapse(database, 100)
            assert nothing_new(await runner.renew(held))
            settled = await settling.settle(database, "gateway:g")
            assert settled is not None
            assert settled.requeued == 0
            kept = await row(database, held.job_id)
            assert kept["settle_at"] == kept["lease_expires_at"]

    asyncio.run(scenario())


def test_renewal_never_passes_the_deadline(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_one(database, await make_owner(database), total_s=60.0)
            runner = Runner(database, lease_s=30)
            held = await runner.claim_one()
            await elapse(database, 45)
            assert nothing_new(await runner.renew(held))
            kept = await row(database, held.job_id)
            assert kept["settle_at"] == kept["deadline_at"] < kept["lease_expires_at"]
            await elapse(database, 15)
            await settling.settle(database, "gateway:g")
            assert (await runner.renew(held)).lost == [held.job_id]

    asyncio.run(scenario())


def test_what_is_not_the_runners_is_lost(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 3)
            runner, other = Runner(database), Runner(database)
            mine, returned, ended = await runner.claim(3)
            await runner.end(returned, "returned")
            await runner.end(ended)
            unknown = Held(str(uuid.uuid4()), str(uuid.uuid4()), 1)
            renewal = await runner.renew(mine, returned, ended, unknown)
            assert sorted(renewal.lost) == sorted([returned.job_id, ended.job_id, unknown.job_id])
            assert (renewal.cancelled, renewal.given_back) == ([], 0)
            # Another session with the right token, and the right session with another token.
            assert (await other.renew(mine)).lost == [mine.job_id]
            before = await row(database, mine.job_id)
            again = await runner.renew(Held(mine.job_id, str(uuid.uuid4()), mine.attempt))
            assert (again.lost, again.given_back) == ([mine.job_id], 1)
            assert before["state"] == "running"
            assert await state(database, mine.job_id) == "queued"
            await check_ledger(database)

    asyncio.run(scenario())


def test_old_start_of_a_job_that_the_runner_got_again_is_lost(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_one(database, await make_owner(database))
            runner = Runner(database)
            old = await runner.claim_one()
            await runner.end(old, "returned")
            claim_id = str(uuid.uuid4())
            (new,) = await runner.claim(claim_id=claim_id)
            assert (new.job_id, new.attempt) == (old.job_id, 2)
            renewal = await runner.renew(old, claiming=[claim_id])
            assert (renewal.lost, renewal.given_back) == ([old.job_id], 0)
            assert nothing_new(await runner.renew(new))
            assert await runner.end(old) is None
            assert await runner.end(new) == "succeeded"

    asyncio.run(scenario())


def test_cancels_are_told_at_each_renewal(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            owner = await make_owner(database)
            await submit_many(database, owner, 3)
            runner = Runner(database)
            held = await runner.claim(3)
            for job in held[:2]:
                await cancelling.cancel(database, job.job_id, owner, "key:k")
            for _ in range(2):
                renewal = await runner.renew(*held)
                assert sorted(renewal.cancelled) == sorted(job.job_id for job in held[:2])
                assert (renewal.lost, renewal.given_back) == ([], 0)
            # One that the runner never got ends at once.
            renewal = await runner.renew(*held[1:])
            assert (renewal.lost, renewal.cancelled, renewal.given_back) == ([], [held[1].job_id], 1)
            assert await state(database, held[0].job_id) == "cancelled"
            await check_ledger(database)

    asyncio.run(scenario())


def test_claim_whose_reply_was_lost_is_given_back_unless_it_is_in_flight(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await submit_many(database, await make_owner(database), 5)
            runner, other = Runner(database), Runner(database)
            others = await other.claim_one()
            lost_claim, in_flight = str(uuid.uuid4()), str(uuid.uuid4())
            held = await runner.claim(1)
            lost = await runner.claim(2, claim_id=lost_claim)
            flying = await runner.claim(1, claim_id=in_flight)
            renewal = await runner.renew(*held, claiming=[str(uuid.uuid4()), in_flight])
            assert (renewal.lost, renewal.cancelled, renewal.given_back) == ([], [], 2)
            for job in lost:
                kept = await row(database, job.job_id)
                assert (kept["state"], kept["attempt"], kept["charged"]) == ("queued", 1, 0)
                assert kept["due_at"] is None
                assert (await story(database, job.job_id))[-1] == (
                    "queued",
                    1,
                    runner.actor,
                    "given back: the reply to its claim was lost",
                )
            assert [await state(database, job.job_id) for job in (*held, *flying, others)] == ["running"] * 3
            assert {job.attempt for job in await other.claim(9)} == {2}
            await check_ledger(database)

    asyncio.run(scenario())


def test_lost_replies_are_charged_from_the_fourth_on(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            job_id = await submit_one(database, await make_owner(database), attempts=2)
            runner = Runner(database)
            for turn in range(1, 6):
                assert len(await runner.claim()) == 1
                assert (await runner.renew()).given_back == 1
                kept = await row(database, job_id)
                assert kept["attempt"] == turn
                assert kept["charged"] == max(0, turn - 3)
                assert (kept["due_at"] is not None) == (turn == 4)
                await check_ledger(database)
                await elapse(database, 1)
            assert (kept["state"], kept["error_category"]) == ("failed", "attempts-exhausted")
            assert await runner.claim() == []

    asyncio.run(scenario())


def test_renewal_and_finish_at_the_same_time_do_not_deadlock(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, 8) as database:
            owner = await make_owner(database)
            for turn in range(8):
                await submit_many(database, owner, 20)
                runner = Runner(database)
                held = await runner.claim(20)
                async with await psycopg.AsyncConnection.connect(database_url) as other:
                    # The first one in the order of ids: the finish waits for it, the renewals don't.
                    first = min(job.job_id for job in held)
                    await other.execute("SELECT FROM job WHERE id = %s FOR UPDATE", [first])
                    commands = [
                        asyncio.ensure_future(command)
                        for command in (
                            runner.renew(*held[::-1]),
                            runner.finish(*(outcome(job) for job in held[::-1])),
                            runner.renew(*held),
                        )
                    ]
                    cancels = [
                        asyncio.ensure_future(cancelling.cancel(database, job.job_id, owner, "key:k"))
                        for job in held[turn::7]
                    ]
                    await until_blocked(database, 1)
                    await other.rollback()
                await asyncio.gather(*commands, *cancels)
                await check_ledger(database)
            jobs = await check_ledger(database)
            assert {job["state"] for job in jobs.values()} <= {"succeeded", "cancelled"}

    asyncio.run(scenario())
