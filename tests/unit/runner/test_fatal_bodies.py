"""Bodies that end badly, with a real supervisor: how it ends for them, and that it ends for nobody else."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import psutil
import pytest
from rig import Rig, runner

from gpu_runner.children import executors
from headrace.link.frames import Error, Lost, Result

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_BACKOFF_S", (0.0, 0.02))


Scenario = Callable[[Rig], Awaitable[None]]
Play = Callable[[Scenario], None]


@pytest.fixture(scope="module")
def run() -> Iterator[Play]:
    """Runs a scenario with a supervisor of one executor, which stays from test to test."""
    with stage(1) as play:
        yield play


@pytest.fixture(scope="module")
def run_with_two() -> Iterator[Play]:
    """The same with two executors."""
    with stage(2) as play:
        yield play


@contextmanager
def stage(number: int) -> Iterator[Play]:
    with asyncio.Runner() as loop:
        stack = AsyncExitStack()
        rig = loop.run(stack.enter_async_context(runner("fatal_bodies", executors=number)))

        async def played(scenario: Scenario) -> None:
            async with asyncio.timeout(PATIENCE_S):
                await works(rig)
                before = _held()
                await scenario(rig)
                await rig.ready()
                await works(rig)
                assert rig.idle()
            for now, then in zip(_held(), before, strict=True):
                assert now <= then, "descriptors or processes are left"

        try:
            yield lambda scenario: loop.run(played(scenario))
        finally:
            loop.run(stack.aclose())


def restarts(rig: Rig) -> int:
    return sum(executor.restarts for executor in rig.supervisor.executors)


def _held() -> tuple[int, int]:
    """Descriptors of the supervisor, and processes below it."""
    gc.collect()
    below = psutil.Process().children(recursive=True)
    alive = [process for process in below if process.is_running() and process.status() != "zombie"]
    return len(os.listdir("/proc/self/fd")), len(alive)  # noqa: PTH208 - counts itself each time


async def works(rig: Rig) -> None:
    for text in "ab":
        assert await rig.gateway.value("echo", text=text, wait=30) == text


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not met():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "function",
    [
        "swallows",
        pytest.param("ignores_signals", marks=pytest.mark.slow),
        pytest.param("blocks_signals", marks=pytest.mark.slow),
        "takes_handlers_off",
        "holds_the_interpreter",
        pytest.param("gives_itself_time", marks=pytest.mark.slow),
        pytest.param("swallows_a_frame", marks=pytest.mark.slow),
        "swallows_its_cancel",
        "keeps_the_loop",
    ],
)
def test_what_nothing_else_ends_is_killed_at_its_hard_limit(run: Play, function: str) -> None:
    async def scenario(rig: Rig) -> None:
        before = restarts(rig)
        pid = rig.pid()
        began = time.monotonic()
        answer = await rig.gateway.call(function)
        assert (answer.category, answer.retryable) == ("hard-limit-exceeded", False)
        assert answer.exec_ms >= 800
        assert time.monotonic() - began < 5
        assert not psutil.pid_exists(pid)
        await until(lambda: restarts(rig) == before + 1)

    run(scenario)


@pytest.mark.parametrize(
    "function", ["overflows", "is_picked_by_the_kernel", "writes_everywhere", "closes_everything"]
)
def test_what_ends_its_process_is_charged_and_no_other_executor_notices(
    run_with_two: Play, function: str
) -> None:
    async def scenario(rig: Rig) -> None:
        before = restarts(rig)
        for _ in range(2):
            answer = await rig.gateway.call(function)
            assert isinstance(answer, Lost), answer
            assert answer.charged
            await rig.ready()
        assert restarts(rig) == before + 2

    run_with_two(scenario)


@pytest.mark.parametrize(
    ("function", "category", "retryable"),
    [
        ("raises_its_own", "function-failed", False),
        ("recurses", "function-failed", False),
        ("allocates", "out-of-memory", True),
        ("returns_too_much", "invalid-output", False),
    ],
)
def test_what_fails_fails_alone(run: Play, function: str, category: str, retryable: bool) -> None:
    async def scenario(rig: Rig) -> None:
        before = restarts(rig)
        for _ in range(2):
            answer = await rig.gateway.call(function)
            assert isinstance(answer, Error), answer
            assert (answer.category, answer.retryable) == (category, retryable)
            await works(rig)
        assert restarts(rig) == before

    run(scenario)


def test_a_large_output_within_its_limit_is_an_output(run: Play) -> None:
    async def scenario(rig: Rig) -> None:
        before = restarts(rig)
        answer = await rig.gateway.call("returns_much")
        assert isinstance(answer, Result)
        assert len(answer.output) == 100 * 2**20 + 2
        assert restarts(rig) == before

    run(scenario)


def test_what_outlives_a_call_disturbs_none_and_ends_with_the_executor(run: Play) -> None:
    async def scenario(rig: Rig) -> None:
        before = restarts(rig)
        left = await rig.gateway.value("leaves_things_running")
        await works(rig)
        assert psutil.Process(left).status() != psutil.STATUS_ZOMBIE
        assert restarts(rig) == before
        rig.executor.kill()
        await until(lambda: restarts(rig) == before + 1)
        await until(lambda: not psutil.pid_exists(left))

    run(scenario)


@pytest.mark.parametrize(
    "function", ["sleeps", "sleeps_with_its_own_limits", "computes_in_a_pool", "sleeps_in_the_loop"]
)
def test_a_body_that_never_looks_up_is_interrupted_after_its_soft_limit(run: Play, function: str) -> None:
    async def scenario(rig: Rig) -> None:
        before = restarts(rig)
        answer: Any = await rig.gateway.call(function)
        assert (answer.category, answer.message) == (
            "soft-limit-exceeded",
            "The function ran into its soft limit of 0.1 s.",
        )
        assert answer.exec_ms >= 300
        assert restarts(rig) == before

    run(scenario)


def test_so_is_one_that_is_stopped_or_past_its_deadline(run: Play) -> None:
    async def scenario(rig: Rig) -> None:
        before = restarts(rig)
        job = rig.gateway.send("patient")
        await until(lambda: job in rig.gateway.started)
        rig.gateway.stop(job)
        assert (await rig.gateway.answer_to(job)).category == "cancelled"
        assert (await rig.gateway.call("patient", left=0.2)).category == "deadline-exceeded"
        assert restarts(rig) == before

    run(scenario)
