"""What must be gone when an executor, or the process above it, has ended; and what must not."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from leaving_functions import LEFT, is_alive, pids
from rig import HERE, Rig, runner

from gpu_runner.children import executors, family
from gpu_runner.children.stacks import StackFile
from gpu_runner.frames import STACKS
from headrace.link.frames import Lost


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_BACKOFF_S", (0.0, 0.02, 0.1, 0.5, 1.5))
    monkeypatch.setattr(executors, "_BACKOFF_ONCE_READY_S", 0.05)


def run(scenario: Any, *modules: str, **options: Any) -> None:
    async def limited() -> None:
        names = modules or ("leaving_functions", "executor_functions")
        async with asyncio.timeout(60), runner(*names, **options) as rig:
            await scenario(rig)

    asyncio.run(limited())


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_what_a_function_has_started_is_gone_when_its_slot_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / "pids")

    async def scenario(rig: Rig) -> None:
        answer = await rig.gateway.call("leaves_and_dies", path=path)
        assert answer == Lost(answer.job_id, 1, charged=True)
        assert len(pids(path)) == LEFT
        assert not any(map(is_alive, pids(path)))
        assert await rig.gateway.value("echo", text="up") == "up"

    run(scenario)


def test_what_a_function_leaves_behind_lives_as_long_as_its_executor(tmp_path: Path) -> None:
    path = str(tmp_path / "pids")

    async def scenario(rig: Rig) -> None:
        assert await rig.gateway.value("leaves", path=path) == rig.pid()
        assert all(map(is_alive, pids(path)))
        assert {psutil.Process(pid).ppid() for pid in pids(path)} == {rig.pid()}
        rig.executor.kill()
        await until(lambda: rig.executor.restarts == 1 and rig.executor.is_ready)
        assert not any(map(is_alive, pids(path)))

    run(scenario)


def test_the_end_of_one_executor_touches_no_other(tmp_path: Path) -> None:
    """Neither its calls, nor what they have started, nor one that starts at that moment."""

    async def scenario(rig: Rig) -> None:
        first, *others = rig.supervisor.executors
        left = [str(tmp_path / str(number)) for number in range(3)]
        values = [rig.gateway.value("leaves", path=path) for path in left]
        owners = dict(zip(await asyncio.gather(*values), left, strict=True))
        jobs = [rig.gateway.send("waits", path=str(tmp_path / "go")) for _ in range(3)]
        await until(lambda: all(executor.calls for executor in rig.supervisor.executors))
        died, before = first.pid, [executor.pid for executor in others]
        assert died is not None
        os.kill(died, signal.SIGKILL)
        await until(lambda: first.restarts == 1 and first.is_ready)
        assert [executor.pid for executor in others] == before
        assert [len(executor.calls) for executor in others] == [1, 1]
        for owner, path in owners.items():
            assert [is_alive(pid) for pid in pids(path)] == [owner != died] * len(pids(path))
        (tmp_path / "go").touch()
        answers = [await rig.gateway.answer_to(job) for job in jobs]
        assert sorted(isinstance(answer, Lost) for answer in answers) == [False, False, True]

    run(scenario, executors=3)


def test_executors_that_start_while_others_are_buried_are_left_alone(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        paths = [str(tmp_path / str(number)) for number in range(6)]
        for path in paths:
            await rig.gateway.call("leaves", path=path)
            for executor in rig.supervisor.executors:
                executor.kill()
            await rig.ready()
        # A newborn one that was taken for an orphan would have ended once more than it was killed.
        assert [executor.restarts for executor in rig.supervisor.executors] == [len(paths)] * 3
        assert not any(is_alive(pid) for path in paths for pid in pids(path))

    run(scenario, executors=3)


def test_a_loader_that_hangs_in_one_executor_keeps_no_other_from_serving(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig("hanging_functions", executors=2)
        for executor in rig.supervisor.executors:
            executor._config = executor._config.replace(b'"path":[', f'"path":["{tmp_path}",'.encode())
        living = [asyncio.create_task(executor.keep_running()) for executor in rig.supervisor.executors]
        await until(lambda: any(executor.is_ready for executor in rig.supervisor.executors))
        for _ in range(3):
            assert await rig.gateway.value("served", wait=5) == 1
        assert [executor.is_ready for executor in rig.supervisor.executors].count(True) == 1
        for task in living:
            task.cancel()
        await asyncio.gather(*living, return_exceptions=True)

    (tmp_path / "hanging_functions.py").write_text(
        textwrap.dedent(
            f"""
            import os, time
            from pydantic import BaseModel
            from headrace import Device, function, model, uses

            class Nothing(BaseModel):
                pass

            @model()
            def slow(device: Device) -> int:
                try:
                    os.close(os.open({str(tmp_path / "first")!r}, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return 1
                while True:
                    time.sleep(1)

            @function()
            def served(input: Nothing, *, number: int = uses(slow)) -> int:
                return number
            """
        )
    )
    sys.path.insert(0, str(tmp_path))
    try:
        asyncio.run(scenario())
    finally:
        sys.path.remove(str(tmp_path))


def test_what_cannot_be_looked_for_keeps_no_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No descriptor, then no thread: the executor is back all the same, and is swept after the next time."""
    path = str(tmp_path / "pids")
    monkeypatch.setattr(executors, "_BURY_AGAIN_S", 0.02)
    real_thread = asyncio.to_thread
    refused: list[Any] = []

    async def no_thread(work: Any, *arguments: Any) -> Any:
        if len(refused) < 2 and work.__name__ == "bury":
            refused.append(work)
            raise RuntimeError("can't start new thread")
        return await real_thread(work, *arguments)

    def no_descriptor() -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario(rig: Rig) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(family, "processes", no_descriptor)
            patch.setattr(executors.asyncio, "to_thread", no_thread)
            answer = await rig.gateway.call("leaves_and_dies", path=path)
            assert answer == Lost(answer.job_id, 1, charged=True)
            assert len(refused) == 2
            assert any(map(is_alive, pids(path)))
        assert await rig.gateway.value("echo", text="up") == "up"
        rig.executor.kill()
        await until(lambda: rig.executor.restarts == 2 and rig.executor.is_ready)
        assert not any(map(is_alive, pids(path)))

    run(scenario)


def test_a_slow_start_beside_it_keeps_nothing_alive_that_an_executor_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Longer than what no signal ends is waited for."""
    path = str(tmp_path / "pids")
    monkeypatch.setattr(family, "_GIVE_UP_S", 0.3)

    async def scenario(rig: Rig) -> None:
        with family.FAMILY._lock:
            family.FAMILY._starting += 1
        job = rig.gateway.send("leaves_and_dies", path=path)
        await until(lambda: len(pids(path)) == LEFT and rig.pid() not in psutil.pids())
        done, _ = await asyncio.wait({rig.gateway.answers[job]}, timeout=1.0)
        assert not done
        with family.FAMILY._lock:
            family.FAMILY._starting -= 1
            family.FAMILY._lock.notify_all()
        assert isinstance(await rig.gateway.answer_to(job), Lost)
        assert not any(map(is_alive, pids(path)))

    run(scenario)


def test_one_that_has_died_is_killed_for_nobody() -> None:
    async def scenario(rig: Rig) -> None:
        job = rig.gateway.send("obey", text="/dev/null")
        await until(lambda: rig.gateway.started)
        call = rig.supervisor.call_of(job)
        os.kill(rig.pid(), signal.SIGKILL)
        await until(lambda: not rig.executor.is_ready)
        rig.gateway.supervisor.kill(job, rig.gateway)
        assert rig.executor.killed_for is None
        assert await rig.gateway.answer_to(job) == Lost(job, 1, charged=True)
        assert call is not None

    run(scenario)


def test_only_an_executor_that_was_killed_is_marked_by_a_freeze() -> None:
    async def scenario(rig: Rig) -> None:
        killed = rig.pid()
        rig.executor.note_frozen({killed + 1})
        assert not rig.executor.was_frozen
        rig.executor.note_frozen({killed})
        assert rig.executor.was_frozen
        rig.executor.kill()
        await until(lambda: rig.executor.restarts == 1)
        rig.executor.note_frozen({killed})  # the next one isn't born yet
        await rig.ready()
        assert not rig.executor.was_frozen

    run(scenario)


def test_the_signal_is_for_calls_of_the_main_thread_only(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        signalled: list[int] = []
        rig.executor._signal = signalled.append  # type: ignore[method-assign, assignment]
        for function in ("pool_body", "async_body", "main_body"):
            note = tmp_path / function
            job = rig.gateway.send(function, how="sleeps", note=str(note))
            await until(note.exists)
            call = rig.supervisor.call_of(job)
            assert call is not None
            rig.executor.interrupt(call)
            await asyncio.sleep(0)  # it is sent after the frame
            await asyncio.sleep(0)
            assert bool(signalled) == (function == "main_body")
        rig.executor.kill()
        await asyncio.gather(*rig.gateway.answers.values())

    run(scenario, "interrupted_functions", "beside_functions")


def test_a_file_in_the_place_of_the_stacks_is_not_touched(tmp_path: Path) -> None:
    def stacks_of(descriptor: int) -> StackFile:
        return StackFile(os.getpid(), descriptor)

    async def settled(stacks: StackFile) -> str:
        return await stacks.settled()

    fifo, file = tmp_path / STACKS, tmp_path / f"memfd:{STACKS} (deleted)"
    os.mkfifo(fifo)
    for path in (fifo, file):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        with pytest.raises(FileNotFoundError):
            stacks_of(descriptor)
        os.close(descriptor)
    memory = os.memfd_create(STACKS)
    stacks = stacks_of(memory)
    os.write(memory, b"in f" + b"." * 2**21)
    assert len(asyncio.run(settled(stacks))) == 2**20
    stacks.clear()
    assert os.fstat(memory).st_size == 0
    stacks.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        stacks.clear()
    os.close(memory)


def test_the_stacks_of_a_body_in_c_can_be_had_and_those_of_one_that_blocks_signals_cannot() -> None:
    async def scenario(rig: Rig) -> None:
        job = rig.gateway.send("obey", text="/dev/null")
        await until(lambda: rig.executor.calls)
        await until(lambda: rig.gateway.started)
        assert "in obey" in await rig.executor.dump()
        one, other = await asyncio.gather(rig.executor.dump(), rig.executor.dump())
        assert one.count("in obey") == other.count("in obey") == 1
        rig.gateway.stop(job)
        await rig.gateway.answer_to(job)
        rig.executor.kill()
        assert await rig.executor.dump() == ""

    run(scenario)


def test_executors_die_with_a_supervisor_that_is_killed() -> None:
    script = textwrap.dedent(
        f"""
        import asyncio, sys, time
        sys.path.append({HERE!r})

        async def main():
            from rig import runner
            async with runner("executor_functions", executors=2) as rig:
                rig.gateway.send("obey")
                print(*[executor.pid for executor in rig.supervisor.executors], flush=True)
                await asyncio.sleep(60)

        if __name__ == "__main__":
            asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(children) == 2
        assert all(map(psutil.pid_exists, children))
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 10
        while any(map(is_alive, children)):
            assert time.monotonic() < deadline, "executors outlived their supervisor"
            time.sleep(0.01)


def test_a_fork_server_that_was_stopped_is_replaced() -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.gateway.value("echo", text="up") == "up"
        watching = asyncio.create_task(family.FAMILY.keep_server_going())
        before = family.FAMILY.server
        os.kill(before, signal.SIGSTOP)
        rig.executor.kill()  # neither can it be buried, nor another one be started
        await until(lambda: rig.executor.restarts >= 1 and rig.executor.is_ready)
        assert await rig.gateway.value("echo", text="up again") == "up again"
        assert family.FAMILY.server != before
        watching.cancel()

    run(scenario)
