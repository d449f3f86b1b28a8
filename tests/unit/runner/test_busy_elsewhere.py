"""A function that has found what it needs elsewhere busy: its runner takes nothing of it for so long."""

from __future__ import annotations

import asyncio

import pytest
from bench import Bench, run

from gpu_runner.frames import Failed
from headrace.link.frames import Call


def fail(bench: Bench, job_id: str, seconds: float) -> None:
    failed = Failed(job_id, "transient", "Not now.", 0.1, retryable=True, retry_after_s=seconds)
    bench.executors[0].say(failed)


def test_the_call_itself_those_that_wait_and_those_that_come_are_told_for_how_long() -> None:
    async def scenario(bench: Bench) -> None:
        running, waiting = bench.gateway.send("echo"), bench.gateway.send("echo")
        fail(bench, running, 30.0)
        error = bench.told(running)
        assert (error.category, error.retryable, error.retry_after_s) == ("transient", True, 30.0)
        for refused in (bench.told(waiting), bench.told(bench.gateway.send("echo"))):
            assert (refused.reason, refused.retry_after_s) == ("full", pytest.approx(30, abs=5))
        assert bench.executors[0].runs == [running]

    run(scenario)


def test_it_takes_calls_again_when_the_time_is_over() -> None:
    async def scenario(bench: Bench) -> None:
        fail(bench, bench.gateway.send("echo"), 0.05)
        assert bench.told(bench.gateway.send("echo")).reason == "full"
        await bench.until(lambda: not bench.supervisor._books.busy_until)
        bench.supervisor.placing.let_jobs_go()  # it looks for jobs first, and here nobody answers
        again = bench.gateway.send("echo")
        assert bench.executors[0].runs[1:] == [again]
        bench.executors[0].finish(again)

    run(scenario)


def test_a_shorter_time_takes_nothing_from_a_longer_one_and_an_hour_is_the_most() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = (bench.gateway.send("together") for _ in range(2))
        assert bench.executors[0].runs == [first, second]
        fail(bench, first, 1e9)
        assert bench.told(first).retry_after_s == 3600
        fail(bench, second, 1.0)
        assert bench.told(second).retry_after_s == 1.0
        refused = bench.told(bench.gateway.send("together"))
        assert 3500 < refused.retry_after_s <= 3600

    run(scenario)


def test_jobs_that_are_given_back_are_told_for_how_long() -> None:
    """Those that wait here, and those that were claimed just before."""

    async def scenario(bench: Bench) -> None:
        running = bench.gateway.send("echo")
        take_job(bench, "waiting")
        assert bench.executors[0].runs == [running]
        fail(bench, running, 30.0)
        take_job(bench, "claimed")
        for given_back in map(bench.told, ("waiting", "claimed")):
            assert (given_back.reason, given_back.retry_after_s) == ("full", pytest.approx(30, abs=5))
        assert bench.executors[0].runs == [running]

    run(scenario)


def take_job(bench: Bench, job_id: str) -> None:
    bench.gateway.answers[job_id] = asyncio.get_running_loop().create_future()
    interface = bench.supervisor._functions["echo"].manifest.interface
    bench.supervisor.take_job(Call(job_id, "echo", interface, b"{}", "o", 1, 10_000, 10_000), bench.gateway)
