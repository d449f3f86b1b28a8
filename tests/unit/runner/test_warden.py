"""The warden and the runner's side of it, with executors of the test's own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from leaving_functions import is_alive, pids
from rig import Rig, runner

from gpu_runner import warden
from gpu_runner.children import watchdog
from gpu_runner.children.watchdog import Warden
from gpu_runner.clock import boot_time


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def run(scenario: Any, lease_s: float = 30.0) -> None:
    """With a warden that watches both executors, and what it has said."""

    async def limited() -> None:
        said: list[set[int]] = []
        guard = Warden(lease_s, said.append)
        guard.start()
        async with asyncio.timeout(60), runner("leaving_functions", executors=2, warden=guard) as rig:
            await scenario(rig, guard, said)
        pid = guard.pid
        await guard.close()
        assert pid is None or not psutil.pid_exists(pid)

    asyncio.run(limited())


def test_without_a_beat_in_time_executors_end_with_all_they_have_started(tmp_path: Path) -> None:
    path = str(tmp_path / "pids")

    async def scenario(rig: Rig, guard: Warden, said: list[set[int]]) -> None:
        await rig.gateway.call("leaves", path=path)
        assert all(map(is_alive, pids(path)))
        before = [executor.pid for executor in rig.supervisor.executors]
        asked = boot_time()
        guard.beat(0.3)
        await until(lambda: said)
        guard.beat(60)
        assert 0.3 <= boot_time() - asked < 5
        await until(lambda: all(executor.restarts == 1 for executor in rig.supervisor.executors))
        assert not any(map(is_alive, pids(path)))
        await rig.ready()
        after = [executor.pid for executor in rig.supervisor.executors]
        assert not set(before) & set(after)
        assert await rig.gateway.value("leaves", path="/dev/null") in after
        assert said == [set(before)]
        assert [executor.pid for executor in rig.supervisor.executors] == after

    run(scenario)


def test_with_beats_in_time_they_live() -> None:
    async def scenario(rig: Rig, guard: Warden, said: list[set[int]]) -> None:
        beating = asyncio.create_task(guard.keep_beating(lambda: float("inf")))
        await asyncio.sleep(1.1 * guard._most_s)  # longer than the first beat grants
        beating.cancel()
        assert not said
        assert [executor.restarts for executor in rig.supervisor.executors] == [0, 0]

    run(scenario, lease_s=6.0)


@pytest.mark.parametrize(
    ("lease_s", "left", "granted"),
    [
        (30.0, 100.0, 23.0),
        (30.0, 10.0, 10.0),
        (30.0, 2.0, 3.0),
        (30.0, 1.0, 2.5),  # no longer than the lease itself
        (30.0, 0.0, 1.5),
        (30.0, -5.0, 1.5),  # but as long as a busy machine may need
        (30.0, float("inf"), 23.0),
        (5.0, 3.1, 3.1),
        (5.0, 2.0, 2.5),
        (5.0, -1.0, 1.5),
        (2.0, 1.2, 1.2),
        (2.0, 0.2, 1.0),
        (3600.0, 3000.0, 2998.0),
    ],
)
def test_a_beat_grants_what_the_first_lease_allows(
    monkeypatch: pytest.MonkeyPatch, lease_s: float, left: float, granted: float
) -> None:
    monkeypatch.setattr(watchdog, "boot_time", lambda: 1000.0)

    async def scenario() -> None:
        guard = Warden(lease_s)
        beats: list[float] = []
        guard.beat = beats.append  # type: ignore[method-assign]
        beating = asyncio.create_task(guard.keep_beating(lambda: 1000.0 + left))
        await asyncio.sleep(0)
        beating.cancel()
        assert beats == [pytest.approx(granted)]

    asyncio.run(scenario())


def test_before_anything_runs_nothing_is_bounded() -> None:
    async def scenario(rig: Rig, guard: Warden, said: list[set[int]]) -> None:
        beating = asyncio.create_task(guard.keep_beating(lambda: None))
        await asyncio.sleep(1.5 * guard._most_s)
        beating.cancel()
        assert not said
        assert [executor.restarts for executor in rig.supervisor.executors] == [0, 0]

    run(scenario, lease_s=1.0)


def test_signals_that_are_meant_for_the_runner_do_not_end_it() -> None:
    async def scenario(rig: Rig, guard: Warden, said: list[set[int]]) -> None:
        assert guard.pid is not None
        process = psutil.Process(guard.pid)
        guard.beat(0.5)
        await until(lambda: said)  # it is past its start
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process.send_signal(number)
        guard.beat(0.1)
        await until(lambda: len(said) == 2)
        guard.beat(60)
        assert guard.pid == process.pid
        await until(lambda: all(executor.restarts >= 1 for executor in rig.supervisor.executors))
        await rig.ready()

    run(scenario)


def test_one_that_reads_no_more_is_replaced() -> None:
    async def scenario(rig: Rig, guard: Warden, said: list[set[int]]) -> None:
        first = guard.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        for _ in range(1000):
            if guard.pid != first:
                break
            guard.beat(20.0)
        assert guard.pid != first
        await until(lambda: not psutil.pid_exists(first))
        await until(lambda: guard.pid is not None)
        guard.beat(0.1)
        await until(lambda: said)
        guard.beat(60)
        await until(lambda: all(executor.restarts == 1 for executor in rig.supervisor.executors))
        await rig.ready()

    run(scenario)


def test_one_that_does_not_end_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        guard = Warden(30.0)
        guard.start()
        first = guard._process
        assert first is not None
        monkeypatch.setattr(watchdog, "_END_S", 0.1)
        kill = first.kill
        monkeypatch.setattr(first, "kill", lambda: None)  # it sits in the kernel
        os.kill(first.pid, signal.SIGSTOP)
        began = boot_time()
        while guard.pid == first.pid:
            guard.beat(20.0)
        assert boot_time() - began < 5
        await until(lambda: guard.pid)
        await guard.close()
        assert first.poll() is None
        kill()
        first.wait()

    asyncio.run(scenario())


def test_one_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        guard = Warden(30.0)
        with monkeypatch.context() as patch:
            patch.setattr(watchdog.sys, "executable", "/nowhere/python")
            guard.start()
            assert guard.pid is None
        await until(lambda: guard.pid)
        await guard.close()

    asyncio.run(scenario())


def test_a_process_that_has_got_the_pid_of_another_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        found = warden.processes()
        found[process.pid].began -= 1
        assert warden.kill(found, {process.pid})
        assert process.poll() is None
        assert warden.kill(warden.processes(), {process.pid})
        assert process.wait() == -signal.SIGKILL


def test_a_process_is_known_by_its_parent() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        watched = warden.Watched(process.pid, os.getpid())
        assert watched.is_there()
        assert not warden.Watched(process.pid, os.getpid() + 1).is_there()
        process.kill()
        process.wait()
        assert not watched.is_there()
        watched.close()


def test_it_imports_next_to_nothing() -> None:
    """It is started beside each runner, and must be there at once."""
    code = Path(warden.__file__).read_text().partition("if __name__")[0] + "print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncio", "socket", "subprocess", "pathlib", "logging", "headrace", "re"} & set(loaded)
