"""Jobs of a batched function: as many are claimed as should fill a lot, and direct calls join them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from job_bench import JobBench, a_job, job_bench
from lot_bench import answer, end, joined, lots, running

from gpu_runner.jobs import feed as module
from headrace.ledger.execution import Claimed

MODULES = ["joined_functions"]


@pytest.fixture(autouse=True)
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found by a look that is due."""
    monkeypatch.setattr(module, "LOOK_S", 60.0)


def run(scenario: Callable[[JobBench], Awaitable[None]], **options: Any) -> None:
    async def limited() -> None:
        async with (
            asyncio.timeout(20),
            job_bench("feed", "finish", modules=MODULES, **options) as bench,
        ):
            await scenario(bench)

    asyncio.run(limited())


def a_join(text: str = "x", **options: Any) -> Claimed:
    return msgspec.structs.replace(a_job("join", **options), input=msgspec.json.encode({"text": text}))


def ids(jobs: list[Claimed]) -> list[str]:
    return [job.job_id for job in jobs]


def send(bench: JobBench, function: str = "join", **options: Any) -> str:
    return bench.gateway.send(function, text="x", **options)


async def end_all(bench: JobBench) -> None:
    for executor in bench.executors:
        while executor.calls:
            if running(executor):
                end(executor)
            else:
                executor.finish(next(iter(executor.calls)))
            await bench.settled()


def test_one_claim_fills_a_lot() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        jobs = [a_join() for _ in range(20)]
        bench.submit(*jobs)
        await bench.settled()
        assert joined(executor) == [
            ids(jobs[:8])
        ]  # it isn't known yet that each costs 1, but taken for granted
        end(executor)
        await bench.settled()
        assert joined(executor)[1:] == [ids(jobs[8:16])]
        end(executor)
        await bench.settled()
        assert joined(executor)[2:] == [ids(jobs[16:])]
        end(executor)
        await bench.settled()
        assert set(bench.ledger.outcomes) == set(ids(jobs))
        assert not bench.supervisor.slots_of("join").turns.contended
        assert not bench.supervisor._calls

    run(scenario)


def test_how_many_are_claimed_follows_from_what_they_cost() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        jobs = [a_join("xxxx") for _ in range(60)]
        bench.submit(*jobs)
        for _ in range(16):
            await bench.settled()
            assert max(map(len, joined(executor))) <= 2  # by cost
            end(executor)
        kind = bench.feed._kinds["join"]
        asked = [free[kind] for _, _, free in bench.ledger.claims if free[kind]]
        assert asked[0] == 8
        assert asked[-1] == 2
        assert [job for lot in joined(executor) for job in lot] == ids(jobs)[: 2 * len(joined(executor))]
        await bench.settled()
        await end_all(bench)

    run(scenario)


def test_jobs_join_direct_calls_that_wait() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        first = send(bench)
        calls = [send(bench) for _ in range(3)]
        jobs = [a_join() for _ in range(9)]
        bench.submit(*jobs)
        await bench.settled()
        end(executor)
        await bench.settled()
        assert joined(executor) == [[first], [*calls, *ids(jobs[:5])]]
        late = send(bench)
        end(executor)
        await bench.settled()
        assert joined(executor)[2:] in ([[late]], [[late, *ids(jobs[5:])]])
        await end_all(bench)
        assert [call for lot in joined(executor) for call in lot if call in ids(jobs)] == ids(jobs)

    run(scenario)


def test_functions_that_share_the_main_thread_take_turns_and_no_more_is_claimed_than_fits() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        joins = [a_join() for _ in range(24)]
        plains = [a_job("plain") for _ in range(4)]
        bench.submit(*joins, *plains)
        order: list[str] = []
        for _ in range(7):
            await bench.settled()
            assert len(executor.calls) == 1  # nothing that was claimed waits
            assert not bench.supervisor.slots_of("plain").turns.arrived
            if running(executor):
                order.append("join")
                end(executor)
            else:
                order.append("plain")
                executor.finish(next(iter(executor.calls)))
        await bench.settled()
        assert sorted(order) == ["join"] * 3 + ["plain"] * 4
        assert order[:6] in (["join", "plain"] * 3, ["plain", "join"] * 3)
        assert [len(lot) for lot in joined(executor)] == [8, 8, 8]

    run(scenario)


def test_jobs_of_one_function_go_to_all_executors() -> None:
    async def scenario(bench: JobBench) -> None:
        jobs = [a_join() for _ in range(16)]
        bench.submit(*jobs)
        await bench.settled()
        assert [len(lot) for executor in bench.executors for lot in joined(executor)] == [8, 8]
        await end_all(bench)

    run(scenario, executors=2)


def test_a_cancelled_job_is_answered_at_once_and_one_that_is_lost_only_when_it_has_ended() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        jobs = [a_join() for _ in range(3)]
        bench.submit(*jobs)
        await bench.settled()
        bench.feed.cancelled(jobs[0].job_id)
        await bench.settled()
        assert bench.ledger.outcomes[jobs[0].job_id].category == "cancelled"
        (lease_lost,) = [job for job in bench.held.running() if job.job_id == jobs[1].job_id]
        bench.held.end(lease_lost, "lease")
        await bench.settled()
        assert jobs[1].job_id not in bench.ledger.outcomes  # or it might start elsewhere beside this one
        again = a_join(job_id=jobs[1].job_id, attempt=2)
        bench.submit(again)
        await bench.settled()
        assert len(lots(executor)) == 1
        answer(executor, jobs[1].job_id, category="stopped")
        end(executor, **{jobs[0].job_id: "stopped"})
        await bench.settled()
        assert joined(executor)[1:] == [[again.job_id]]
        end(executor)
        await bench.settled()
        assert bench.ledger.outcomes[again.job_id].attempt == 2
        assert not bench.supervisor._calls

    run(scenario)


def test_a_job_that_waits_for_its_own_earlier_start_fills_one_slot_once() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = a_job("pair")  # two slots
        bench.submit(job)
        await bench.settled()
        again = a_job("pair", job_id=job.job_id, attempt=2)
        bench.submit(again)
        await bench.settled()
        assert list(bench.supervisor._books.parked) == [job.job_id]
        turns = bench.supervisor.slots_of("pair").turns
        filled = turns.filled
        answer(executor, job.job_id, category="stopped")
        assert turns.filled == filled  # nothing was kept for it any more
        end(executor)
        await bench.settled()
        await end_all(bench)
        assert bench.ledger.outcomes[job.job_id].attempt == 2

    run(scenario)


def test_jobs_that_wait_in_a_lot_are_given_back_when_their_executor_is_gone() -> None:
    async def scenario(bench: JobBench) -> None:
        first, second = bench.executors
        for _ in range(2):
            send(bench)
        jobs = [a_join("xxxxxxxx") for _ in range(9)]  # more than fit: cost isn't known yet
        bench.submit(*jobs)
        end(first)
        await bench.settled()
        turns = bench.supervisor.slots_of("join").turns
        assert len(turns.arrived) > 1
        first.lose()
        second.lose()
        await bench.settled()
        assert not bench.supervisor._calls
        assert {one.kind for one in bench.ledger.outcomes.values()} == {"lost", "returned"}
        assert not turns.arrived

    run(scenario, executors=2)


def test_jobs_that_run_alone_join_nobody() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        suspects, others = [a_join(alone=True) for _ in range(2)], [a_join() for _ in range(3)]
        bench.submit(*suspects, *others)
        for _ in range(3):
            await bench.settled()
            end(executor)
        await bench.settled()
        assert sorted(map(len, joined(executor))) == [1, 1, 3]

    run(scenario)


def test_nobody_waits_for_those_whose_jobs_ran_together() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        pace = bench.supervisor.joining._paces["join"]
        pace.batch = replace(pace.batch, max_wait=30.0)
        for _ in range(30):
            send(bench)
            end(executor)
        bench.submit(*[a_join() for _ in range(3)])
        await bench.settled()
        end(executor)
        await bench.settled()
        assert [len(lot) for lot in joined(executor)[-2:]] == [1, 3]
        assert pace.comes_fast
        call = send(bench)
        assert joined(executor)[-1] == [call]
        end(executor)

    run(scenario)
