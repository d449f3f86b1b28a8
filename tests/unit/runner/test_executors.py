from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from rig import HERE, Rig, runner

from gpu_runner.children import executors
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.runner import Runner
from headrace.link.frames import Error, Lost, Refused, Result
from headrace.settings import Settings


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_BACKOFF_S", (0.0, 0.02, 0.1, 0.5, 1.5))
    monkeypatch.setattr(executors, "_BACKOFF_ONCE_READY_S", 0.05)


def run(scenario: Any, *modules: str, **options: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(40), runner(*(modules or ("executor_functions",)), **options) as rig:
            await scenario(rig)

    asyncio.run(limited())


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


def test_calls_run_in_another_process() -> None:
    async def scenario(rig: Rig) -> None:
        answer = await rig.gateway.call("echo", text="hello")
        assert isinstance(answer, Result)
        assert (answer.output, answer.attempt, answer.load) == (b'"hello"', 1, 0)
        assert answer.queue_ms < 5000
        assert 0 <= answer.exec_ms < 5000
        assert await rig.gateway.value("whoami") == rig.pid() != os.getpid()
        assert rig.supervisor.device == "cpu"
        assert rig.count("headrace_runner_executors_ready") == 1
        assert rig.count("headrace_runner_executions_total", function="echo", outcome="succeeded") == 1

    run(scenario)


@pytest.mark.parametrize(
    ("text", "category", "message", "retryable"),
    [
        ("system-exit", "function-failed", "The function failed.", False),
        ("keyboard-interrupt", "function-failed", "The function failed.", False),
        ("generator-exit", "function-failed", "The function failed.", False),
        ("cancelled", "soft-limit-exceeded", "The call was stopped.", False),
        ("memory", "out-of-memory", "The function ran out of memory.", True),
        ("recursion", "function-failed", "The function failed.", False),
        ("runtime", "function-failed", "The function failed.", False),
        ("permanent", "function-failed", "it burnt down", False),
        ("surrogate", "function-failed", "no file caf?", False),
        ("broken", "function-failed", "The function failed.", False),
        ("transient", "transient", "The function failed for now.", True),
        ("invalid", "invalid-input", "odd", False),
        ("invalid-surrogate", "invalid-input", "odd ?", False),
        ("invalid-object", "invalid-input", "odd", False),
    ],
)
def test_whatever_a_body_raises_is_an_answer_and_the_process_lives(
    text: str, category: str, message: str, retryable: bool
) -> None:
    async def scenario(rig: Rig) -> None:
        pid = rig.pid()
        answer = await rig.gateway.call("raises", text=text)
        assert isinstance(answer, Error)
        assert (answer.category, answer.message, answer.retryable) == (category, message, retryable)
        assert await rig.gateway.value("whoami") == pid
        assert rig.executor.restarts == 0

    run(scenario)


def test_outputs_are_held_to_type_and_limit() -> None:
    async def scenario(rig: Rig) -> None:
        assert (await rig.gateway.call("lies")).category == "invalid-output"
        answer = await rig.gateway.call("too_large")
        assert answer.category == "invalid-output"
        assert "2002 bytes" in answer.message
        assert "1024" in answer.message
        assert (await rig.gateway.call("echo", text=3)).category == "invalid-input"
        assert len((await rig.gateway.call("large")).output) == 8 * 2**20 + 2

    run(scenario)


def test_what_a_body_prints_disturbs_no_frame() -> None:
    async def scenario(rig: Rig) -> None:
        for text in "abc":
            assert await rig.gateway.value("noise", text=text) == text
            assert await rig.gateway.value("tell", text=text) == text
        assert rig.executor.restarts == 0

    run(scenario)


def test_a_running_body_sees_that_it_was_stopped(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        running = tmp_path / "running"
        job = rig.gateway.send("obey", text=str(running))
        await until(running.exists)
        waiting = rig.gateway.send("echo", text="next")  # its frame comes before the stop
        rig.gateway.stop(job)
        rig.gateway.stop(job)
        answer = await rig.gateway.answer_to(job)
        assert answer.category == "cancelled"
        assert isinstance(await rig.gateway.answer_to(waiting), Result)
        assert rig.executor.restarts == 0

    run(scenario, brief_wait=10)


def test_the_soft_limit_is_seen_by_check_and_counts_execution_only() -> None:
    async def scenario(rig: Rig) -> None:
        began = time.monotonic()
        answer = await rig.gateway.call("soft")
        assert (answer.category, answer.message) == (
            "soft-limit-exceeded",
            "The function ran into its soft limit of 0.1 s.",
        )
        assert 0.1 <= time.monotonic() - began < 5
        assert answer.exec_ms >= 90

    run(scenario)


def test_a_deadline_before_the_soft_limit_is_named_as_what_it_is() -> None:
    async def scenario(rig: Rig) -> None:
        answer = await rig.gateway.call("obey", left=0.3)
        assert (answer.category, answer.message) == (
            "deadline-exceeded",
            "The call was not finished at its deadline.",
        )

    run(scenario)


@pytest.mark.parametrize(("left", "most"), [(100.0, 5.0), (3.0, 3.0)])
def test_remaining_ends_at_the_hard_limit_or_the_deadline(left: float, most: float) -> None:
    async def scenario(rig: Rig) -> None:
        seconds = await rig.gateway.value("remaining", left=left)
        assert most - 1 < seconds <= most

    run(scenario)


def test_a_body_past_its_hard_limit_is_killed_and_the_next_call_works() -> None:
    async def scenario(rig: Rig) -> None:
        pid = rig.pid()
        job, waiting = rig.gateway.send("hang"), rig.gateway.send("whoami")
        answer = await rig.gateway.answer_to(job)
        assert (answer.category, answer.retryable) == ("hard-limit-exceeded", False)
        assert "0.3 s" in answer.message
        assert answer.exec_ms >= 300
        assert not psutil.pid_exists(pid)  # its slot is free only when it is gone
        answer = await rig.gateway.answer_to(waiting)
        assert int(answer.output) == rig.pid() != pid
        assert rig.executor.restarts == 1
        assert rig.count("headrace_runner_executor_losses_total") == 1

    run(scenario, brief_wait=10)


def test_kills_in_a_row_do_not_slow_the_restart() -> None:
    async def scenario(rig: Rig) -> None:
        waits: list[float] = []
        for _ in range(5):
            assert (await rig.gateway.call("hang")).category == "hard-limit-exceeded"
            began = time.monotonic()
            assert await rig.gateway.value("echo", text="up") == "up"
            waits.append(time.monotonic() - began)
        assert min(waits[2:]) < 0.75  # a pause would be 0.8 s by then

    run(scenario)


def test_a_stopped_process_is_ended_by_the_hard_limit() -> None:
    async def scenario(rig: Rig) -> None:
        assert (await rig.gateway.call("stop_self")).category == "hard-limit-exceeded"
        assert await rig.gateway.value("echo", text="up") == "up"

    run(scenario)


def test_a_forked_child_does_not_keep_a_dead_executor_alive(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        file = tmp_path / "pid"
        answer = await rig.gateway.call("fork_and_hang", text=str(file))
        assert answer.category == "hard-limit-exceeded"
        assert not psutil.pid_exists(int(file.read_text()))
        assert await rig.gateway.value("echo", text="up") == "up"

    run(scenario)


@pytest.mark.parametrize("function", ["crash", "segfault"])
def test_a_crash_is_charged_and_the_next_call_works(function: str) -> None:
    async def scenario(rig: Rig) -> None:
        answer = await rig.gateway.call(function)
        assert answer == Lost(answer.job_id, 1, charged=True)
        assert await rig.gateway.value("echo", text="up") == "up"
        assert rig.executor.restarts == 1

    run(scenario)


def test_an_executor_that_somebody_else_kills_while_idle_is_replaced() -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(3):
            pid = rig.pid()
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: not rig.executor.is_ready or rig.pid() != pid)
            await rig.ready()
            assert await rig.gateway.value("whoami") == rig.pid() != pid

    run(scenario)


def test_a_thread_left_behind_may_look_up_without_harm() -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(2):
            await rig.gateway.call("leave_a_looker", seconds=3.0)
        text = "x" * 200_000  # in many reads
        for number in range(100):
            assert await rig.gateway.value("echo", text=f"{number}{text}") == f"{number}{text}"
        assert rig.executor.restarts == 0

    run(scenario)


def test_no_descriptor_and_no_process_is_left_after_thirty_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_BACKOFF_S", (0.0,))

    async def scenario(rig: Rig) -> None:
        def state() -> int:
            return len(list(Path("/proc/self/fd").iterdir()))

        pids = {rig.pid()}
        gc.collect()  # what earlier tests left is not to be counted
        before = state()
        for number in range(1, 31):
            rig.executor.kill()
            await until(lambda number=number: rig.executor.restarts == number and rig.executor.is_ready)
            pids.add(rig.pid())
        assert len(pids) == 31
        assert state() <= before
        assert [pid for pid in pids if psutil.pid_exists(pid)] == [rig.pid()]

    run(scenario)


# ---------------------------------------------------------------------- loading


def test_models_are_loaded_once_and_shared() -> None:
    async def scenario(rig: Rig) -> None:
        loaded = await rig.gateway.value("with_good")
        assert loaded == {"device": "cpu", "pid": str(rig.pid())}
        assert await rig.gateway.value("with_good_too") == rig.pid()

    run(scenario, "loading_functions")


def test_a_function_whose_model_cannot_be_loaded_is_degraded_and_others_work() -> None:
    async def scenario(rig: Rig) -> None:
        answer = await rig.gateway.call("with_broken")
        assert isinstance(answer, Refused)
        assert answer.reason == "degraded"
        assert answer.detail == (
            "model loading_functions:broken could not be loaded: RuntimeError: no weights at caf?"
        )
        assert await rig.gateway.value("plain", text="fine") == "fine"
        degraded = {service.function: service.degraded for service in rig.supervisor.services()}
        assert degraded["with_broken"] == answer.detail
        assert degraded["plain"] == degraded["with_good"] == ""
        assert rig.services_changed == 1
        assert rig.executor.restarts == 0
        assert rig.count("headrace_runner_refusals_total", function="with_broken", reason="degraded") == 1

    run(scenario, "loading_functions")


def test_a_process_that_ends_while_it_loads_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        rig = Rig("fatal_functions")
        monkeypatch.setattr(rig.executor, "_config", _with_environment(rig.executor._config, tmp_path))
        living = asyncio.create_task(rig.executor.keep_running())
        waiting = rig.gateway.send("with_fatal", text="patient")  # loading counts as waiting
        async with asyncio.timeout(20):
            assert (await rig.gateway.answers[waiting]).output == b'"patient"'  # type: ignore[union-attr]
        assert rig.executor.restarts == 2
        assert rig.idle()
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        await asyncio.sleep(0)

    asyncio.run(scenario())


def test_a_module_that_only_an_executor_cannot_import_is_one_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "unlicensed.py").write_text("raise OSError('no licence here')\n")
    config = ExecutorConfig(
        functions=("unlicensed",), device="cpu", threads=1, path=(str(tmp_path), *sys.path)
    )
    code = (
        "import socket, sys; from gpu_runner.executor import main; "
        "ours, theirs = socket.socketpair(); main.run(theirs, sys.argv[1].encode())"
    )
    command = [sys.executable, "-c", code, msgspec.json.encode(config).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = done.stdout.splitlines()
    assert "can't be imported: OSError: no licence here" in json.loads(line)["event"]


def _with_environment(config: bytes, tmp_path: Path) -> bytes:
    """A folder in front of the executor's path whose module sets the variable that `fatal` reads."""
    loads = tmp_path / "loads"
    loads.write_text("")
    (tmp_path / "fatal_functions.py").write_text(
        f"import os\nos.environ['HEADRACE_TEST_LOADS'] = {str(loads)!r}\n"
        + (Path(HERE) / "fatal_functions.py").read_text().replace("from __future__ import annotations\n", "")
    )
    return config.replace(b'"path":[', f'"path":["{tmp_path}",'.encode())


def test_a_runner_fails_with_an_executor_that_is_not_kept_running() -> None:
    async def ends() -> None:
        raise RuntimeError("nobody keeps it running")

    async def scenario() -> None:
        failing = Runner(Settings(), {}, "runner")
        failing._lives.append(asyncio.create_task(ends()))
        for waiting in (failing._until_stopped(), failing._unless_stopped(asyncio.Event().wait())):
            with pytest.raises(RuntimeError, match="nobody keeps"):
                await asyncio.wait_for(waiting, 5)

    asyncio.run(scenario())


def test_starts_that_come_to_nothing_are_spaced_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real_sleep(0)

    lives = iter([False, False, True, False, False, False, False, False, False])
    monkeypatch.setattr(executors, "_BACKOFF_S", (0.0, 0.2, 1.0, 5.0, 15.0))
    monkeypatch.setattr(executors, "_BACKOFF_ONCE_READY_S", 1.0)
    monkeypatch.setattr(executors.asyncio, "sleep", sleep)

    async def scenario() -> None:
        rig = Rig("executor_functions")

        async def live() -> bool:
            try:
                return next(lives)
            except StopIteration:
                raise asyncio.CancelledError from None

        monkeypatch.setattr(rig.executor, "_live", live)
        with pytest.raises(asyncio.CancelledError):
            await rig.executor.keep_running()

    asyncio.run(scenario())
    wanted = [0.0, 0.2, 1.0, 1.0, 15.0, 15.0, 15.0, 15.0, 15.0, 15.0]  # capped after one that was ready
    assert len(pauses) == len(wanted)
    for pause, want in zip(pauses, wanted, strict=True):
        assert want * 0.8 <= pause <= want * 1.2
