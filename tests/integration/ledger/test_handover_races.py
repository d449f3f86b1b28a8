"""A handover and something else at the same time: the order of their commits decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from harness.ledger import (
    LANE,
    Runner,
    check_ledger,
    make_owner,
    new_call,
    new_job,
    opened,
    story,
    submission_of,
    submit_one,
    until_blocked,
)
from harness.ledger_races import begun, race

from headrace.database import Database
from headrace.ledger.handover import HandedOver, Recorded
from headrace.ledger.submission import Receipt, submit

LANES = ("f0", "f1", "f2")
ADMIT = "SELECT * FROM admit_batch_v1(%s::uuid, %s, '{1}', 1, 100, 100, NULL, NULL)"


def handed(runner: Runner, *calls: HandedOver) -> Callable[[Database], Awaitable[dict[str, Recorded]]]:
    return lambda database: runner.on(database).hand_over(*calls)


def submitted(*calls: HandedOver) -> Callable[[Database], Awaitable[list[Receipt]]]:
    return lambda database: submit(database, [submission_of(call) for call in calls])


@pytest.mark.parametrize("undone", [False, True], ids=["committed", "undone"])
def test_a_submission_and_then_a_handover_of_the_same_calls(database_url: str, undone: bool) -> None:
    """In opposite orders: neither waits for the other in a circle."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            await submit(database, [new_job(owner, function=lane) for lane in LANES])
            calls = [new_call(owner, function=lane) for lane in (*LANES, *LANES)]
            receipts, records = await race(
                database, submitted(*calls[::-1]), handed(runner, *calls), undone=undone
            )
            assert {receipt.outcome for receipt in receipts} == {"accepted"}
            assert {one.verdict for one in records.values()} == {"committed" if undone else "fenced"}
            jobs = await check_ledger(database)
            assert {jobs[call.job_id]["state"] for call in calls} == {"running" if undone else "queued"}

    asyncio.run(scenario())


@pytest.mark.parametrize("undone", [False, True], ids=["committed", "undone"])
def test_a_handover_and_then_a_submission_of_the_same_calls(database_url: str, undone: bool) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            await submit(database, [new_job(owner, function=lane) for lane in LANES])
            calls = [new_call(owner, function=lane) for lane in (*LANES, *LANES)]
            records, receipts = await race(
                database, handed(runner, *calls), submitted(*calls[::-1]), undone=undone
            )
            assert {one.verdict for one in records.values()} == {"committed"}
            assert {receipt.outcome for receipt in receipts} == {"accepted" if undone else "replayed"}
            jobs = await check_ledger(database)
            assert {jobs[call.job_id]["state"] for call in calls} == {"queued" if undone else "running"}

    asyncio.run(scenario())


def test_a_handover_that_is_sent_again_while_it_is_under_way(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            runner = Runner(database)
            call = new_call(await make_owner(database))
            first, second = await race(database, handed(runner, call), handed(runner, call))
            assert first[call.job_id].verdict == second[call.job_id].verdict == "committed"
            assert len(await story(database, call.job_id)) == 1
            await check_ledger(database)

    asyncio.run(scenario())


def test_a_handover_and_a_submission_take_the_flows_of_several_lanes_in_one_order(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database, asyncio.timeout(30):
            owner = await make_owner(database)
            await submit(database, [new_job(owner, function=lane) for lane in LANES])
            calls = [new_call(owner, function=lane) for lane in LANES[::-1]]
            async with begun(database) as other:
                await submit(other, [new_job(owner, function="f1")])
                task = asyncio.ensure_future(Runner(database).hand_over(*calls))
                await until_blocked(database, 1)
                await submit(other, [new_job(owner, function="f2")])
                assert not task.done()
            assert {record.verdict for record in (await task).values()} == {"committed"}
            await check_ledger(database)

    asyncio.run(scenario())


def test_it_waits_for_a_batch_of_its_owner_and_no_other(database_url: str) -> None:
    """As any submission of that flow does."""

    async def scenario() -> None:
        async with opened(database_url) as database:
            runner, owner = Runner(database), await make_owner(database)
            call, others = new_call(owner), new_call(await make_owner(database))
            urgent = new_call(owner, weight=4.0)
            await submit_one(database, owner)

            async def admit(begun: Database) -> None:
                await begun.fetch(ADMIT, [owner, LANE])

            _, records = await race(database, admit, handed(runner, urgent, others), waits=False)
            assert {record.verdict for record in records.values()} == {"committed"}
            _, records = await race(database, admit, handed(runner, call))
            assert records[call.job_id].verdict == "committed"
            await check_ledger(database)

    asyncio.run(scenario())
