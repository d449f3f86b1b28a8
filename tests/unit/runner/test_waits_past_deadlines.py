"""A job whose deadline passes while it waits here is answered then, and never started."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from bench import MODULES, Bench
from bench import run as run_bench
from job_bench import JobBench, a_job, job_bench
from lot_bench import answer, end, joined
from rig import Gateway

from gpu_runner.frames import Load, Loaded, Loading, RunBatch

FIRST = "resident_functions:first"


def run(scenario: Callable[[JobBench], Awaitable[None]], *modules: str, **options: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), job_bench("feed", "finish", modules=modules, **options) as bench:
            await scenario(bench)

    asyncio.run(limited())


def assert_given_up(bench: JobBench, job_id: str) -> None:
    outcome = bench.ledger.outcomes[job_id]
    assert (outcome.kind, outcome.category, outcome.execution_s) == ("failed", "deadline-exceeded", 0)
    assert outcome.message == "The call was not started before its deadline."


@pytest.mark.parametrize(
    ("function", "alone"), [("with_first", False), ("with_first", True), ("joined", False), ("joined", True)]
)
def test_a_job_that_waits_for_its_model_has_a_deadline(function: str, alone: bool) -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = a_job(function, left=0.1, alone=alone)
        bench.submit(job)
        await bench.ledger.until(lambda: any(isinstance(frame, Load) for frame in executor.sent))
        executor.say(Loading(FIRST))
        await bench.ledger.until(lambda: job.job_id in bench.ledger.outcomes)
        assert_given_up(bench, job.job_id)
        executor.say(Loaded(FIRST, 1, 1.0))
        await bench.settled()
        assert not executor.calls
        assert executor.closed_for is None
        assert not bench.supervisor._calls
        slots = bench.supervisor.slots_of(function)
        assert (slots.load, slots.turns.contended) == (0, False)

    run(scenario, "resident_functions")


@pytest.mark.parametrize("alone", [False, True])
def test_it_is_not_started_though_its_model_is_there_before_the_next_look(alone: bool) -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = a_job("with_first", alone=alone)
        bench.submit(job)
        await bench.ledger.until(lambda: any(isinstance(frame, Load) for frame in executor.sent))
        executor.say(Loading(FIRST))
        bench.supervisor._calls[job.job_id].deadline_at = time.monotonic()
        executor.say(Loaded(FIRST, 1, 1.0))
        assert not executor.runs
        bench.supervisor._tick()
        await bench.settled()
        assert_given_up(bench, job.job_id)

    run(scenario, "resident_functions")


def test_a_lot_starts_without_the_jobs_that_are_late() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        late, other = a_job("joined"), a_job("joined")
        bench.submit(late, other)
        await bench.ledger.until(lambda: any(isinstance(frame, Load) for frame in executor.sent))
        await bench.ledger.until(lambda: len(bench.supervisor._calls) == 2)
        executor.say(Loading(FIRST))
        bench.supervisor._calls[late.job_id].deadline_at = time.monotonic()
        executor.say(Loaded(FIRST, 1, 1.0))
        (batch,) = [frame for frame in executor.sent if isinstance(frame, RunBatch)]
        assert [item.job_id for item in batch.items] == [other.job_id]
        await bench.settled()
        assert_given_up(bench, late.job_id)

    run(scenario, "resident_functions")


def test_a_job_that_waits_for_its_earlier_start_to_end_has_a_deadline() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        job = a_job("many")
        bench.submit(job)
        await bench.settled()
        bench.submit(a_job("many", job_id=job.job_id, attempt=2, left=0.1))
        await bench.ledger.until(lambda: job.job_id in bench.ledger.outcomes)
        assert_given_up(bench, job.job_id)
        executor.finish(job.job_id)
        await bench.settled()
        assert executor.runs == [job.job_id]

    run(scenario, *MODULES)


def test_one_that_is_given_up_lets_others_start_without_those_that_are_late() -> None:
    async def scenario(bench: JobBench) -> None:
        (executor,) = bench.executors
        before = bench.gateway.send("plain")
        alone, late, other = a_job("plain", alone=True), a_job("join"), a_job("join")
        for job in (alone, late, other):
            bench.held.start(job, math.inf)
        for job in (alone, late):
            bench.supervisor._calls[job.job_id].deadline_at = 0.0
        executor.finish(before)
        bench.supervisor._tick()
        assert joined(executor) == [[other.job_id]]
        await bench.settled()
        for job in (alone, late):
            assert_given_up(bench, job.job_id)
        end(executor)

    run(scenario, "joined_functions")


def test_a_gateway_that_is_gone_had_calls_that_let_each_other_start() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        before = bench.gateway.send("plain")
        gone = Gateway(bench.supervisor)
        alone, late, other = gone.send("plain", alone=True), gone.send("join"), gone.send("join")
        for call in (alone, late):
            bench.supervisor._calls[call].deadline_at = 0.0
        executor.finish(before)
        bench.supervisor.caller_lost(gone)
        assert joined(executor) == [[other]]
        assert executor.stops == [other]
        end(executor)
        assert not bench.supervisor._calls

    run_bench(scenario, modules=["joined_functions"])


def test_limits_are_kept_though_one_look_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        call = bench.gateway.send("echo")
        with monkeypatch.context() as patch:
            patch.setattr(bench.supervisor._endings, "overdue", lambda now: now / 0)
            with pytest.raises(ZeroDivisionError):
                bench.supervisor._tick()
        assert bench.supervisor._ticking is not None
        executor.finish(call)

    run_bench(scenario)


def test_who_starts_late_all_the_same_has_time_to_end() -> None:
    """Its executor, with all that runs beside it, isn't killed at the first look."""

    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        call = bench.gateway.send("echo", left=0)
        bench.supervisor._calls[call].deadline_at -= 60
        bench.supervisor._calls[call].start(executor, bench.supervisor._books.patience_s)
        bench.supervisor._tick()
        assert executor.killed_for is None
        executor.finish(call)

    run_bench(scenario)


def test_a_direct_call_waits_no_longer_than_its_deadline() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        running = bench.gateway.send("echo")
        async with asyncio.timeout(5):
            assert (await bench.gateway.call("echo", wait=60, left=0.1)).reason == "full"
        executor.finish(running)

    run_bench(scenario)


def test_who_gets_a_slot_from_another_that_has_waited_in_vain_runs() -> None:
    async def scenario(bench: Bench) -> None:
        (executor,) = bench.executors
        for _ in range(8):  # they are looked at in any order
            before = bench.gateway.send("pair")
            alone, last = bench.gateway.send("pair", alone=True), bench.gateway.send("pair")
            for call in (alone, last):
                bench.supervisor._calls[call].wait_until = 0.0
            bench.supervisor._tick()
            assert bench.told(alone).reason == "full"
            if bench.told(last) is None:
                assert joined(executor)[-1] == [last]
                end(executor, executor.calls[bench.supervisor._calls[last].lot.job_id])
            answer(executor, before)
            end(executor)

    run_bench(scenario, modules=["joined_functions"])
