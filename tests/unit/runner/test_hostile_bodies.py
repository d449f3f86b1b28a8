from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from rig import Rig, runner

from gpu_runner.children import executors
from headrace.link.frames import Lost


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_BACKOFF_S", (0.0, 0.02))


def run(scenario: Callable[[Rig], Awaitable[None]], functions: str = "hostile_functions") -> None:
    async def play() -> None:
        async with runner(functions) as rig:
            await scenario(rig)

    asyncio.run(play())


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not met():
            await asyncio.sleep(0.005)


def test_a_forked_child_that_comes_back_answers_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(10):
            assert await rig.gateway.value("fork_and_return") == "parent"
            assert await rig.gateway.value("echo", text="mine") == "mine"
        assert rig.executor.restarts == 0

    run(scenario)


def test_what_a_body_started_dies_with_its_executor(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        file = tmp_path / "pid"
        answer = await rig.gateway.call("leave_a_child", text=str(file))
        assert answer.category == "hard-limit-exceeded"
        await until(lambda: not psutil.pid_exists(int(file.read_text())))
        assert await rig.gateway.value("echo", text="up") == "up"

    run(scenario)


def test_an_error_that_exits_in_words_is_a_failure_like_others() -> None:
    async def scenario(rig: Rig) -> None:
        assert (await rig.gateway.call("exit_in_words")).category == "function-failed"
        assert rig.executor.restarts == 0

    run(scenario)


def test_a_stop_that_came_before_its_call_counts(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        witness = tmp_path / "ran"
        await rig.gateway.value("note", text=str(witness))
        running = rig.gateway.send("look_up_then_nap")
        # As when it was handed ahead: the executor has the call, and the running body looks up.
        held = rig.gateway.send("note", text=str(witness))
        (call,) = rig.supervisor._slots["note"].waiting
        executors_call = rig.supervisor._slots["note"].pop()
        assert call is executors_call
        rig.supervisor.placing.hand_ahead(call, rig.supervisor._slots["note"], rig.executor)
        rig.gateway.stop(held)
        assert (await rig.gateway.answer_to(held)).category == "cancelled"
        await rig.gateway.answer_to(running)
        assert witness.read_text() == "ran\n"

    run(scenario)


def test_a_start_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        real = rig.executor._context.Process
        failures = [EOFError, OSError, MemoryError]

        def fails(*arguments: object, **options: object) -> object:
            if failures:
                raise failures.pop()("no luck")
            return real(*arguments, **options)

        monkeypatch.setattr(rig.executor._context, "Process", fails)
        rig.executor.kill()
        await until(lambda: not failures and rig.executor.is_ready)
        assert await rig.gateway.value("echo", text="up") == "up"

    run(scenario)


def test_an_executor_that_dies_for_what_it_sent_dies_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        assert isinstance(await rig.gateway.call("break_the_channel"), Lost)
        assert "executor 0 sent what is no frame, and is killed: Expected `str`, got `int`" in caplog.text
        await rig.ready()
        caplog.clear()
        rig.executor.kill()
        await until(lambda: rig.executor.restarts == 2 and rig.executor.is_ready)
        assert "executor 0 ended" in caplog.text
        assert "no frame" not in caplog.text

    run(scenario)


def test_an_executor_that_can_take_no_calls_ends() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.gateway.value("break_executor")
        assert isinstance(await rig.gateway.call("async_echo"), Lost)
        await rig.ready()
        assert await rig.gateway.value("async_echo", how="up") == "up"
        assert rig.executor.restarts == 1

    run(scenario, "forking_functions")
