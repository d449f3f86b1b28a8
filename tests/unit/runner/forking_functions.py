"""Asynchronous functions that fork, and functions that spoil their executor."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gpu_runner.executor import making
from headrace import Call, function


class Ask(BaseModel):
    how: str = ""
    note: str = "/dev/null"
    seconds: float = 0.0

    def say(self, words: str) -> None:
        with Path(self.note).open("a") as file:
            file.write(f"{words}\n")


@function()
def echo(input: Ask) -> str:
    return input.how


@function(concurrency=8)
async def async_echo(input: Ask) -> str:
    await asyncio.sleep(input.seconds)
    return input.how


@function(concurrency=8)
async def ticks(input: Ask) -> int:
    """Writes its process's id at each turn of the loop."""
    end = time.monotonic() + input.seconds
    while time.monotonic() < end:
        input.say(f"{os.getpid()}")
        await asyncio.sleep(0)
    return os.getpid()


@function(concurrency=8)
async def forks(input: Ask, *, call: Call) -> str:
    """Its child comes back in one of several ways, after it has called for attention."""
    future = asyncio.get_running_loop().create_future()
    pid = os.fork()
    if pid == 0:
        call.progress(0.5, "a child's")
        await _come_back(input.how, future)
        return "child"
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    return f"parent, {os.waitstatus_to_exitcode(status)}"


async def _come_back(how: str, future: asyncio.Future[Any]) -> None:
    match how:
        case "sleeps":
            await asyncio.sleep(3)
        case "waits":
            await future
        case "exits":
            sys.exit(0)
        case "forks":
            os.fork()
            await future
        case "tells the loop":
            future.get_loop().call_soon_threadsafe(future.set_result, None)
            await future
        case "watches":
            future.get_loop().add_reader(0, future.cancel)
        case _:
            pass


@function(concurrency=8)
async def starts_processes(input: Ask) -> list[int]:
    """In all ways that Python has; what they run has a loop of its own."""
    codes: list[int] = []
    for method in ("fork", "forkserver", "spawn"):
        context: Any = multiprocessing.get_context(method)
        process = context.Process(target=_works)
        process.start()
        await asyncio.to_thread(process.join)
        codes.append(process.exitcode)
    codes.append(subprocess.run(["true"], check=False, preexec_fn=os.getpid).returncode)
    codes.append(await (await asyncio.create_subprocess_exec("true")).wait())
    return codes


def _works() -> None:
    assert asyncio.run(asyncio.sleep(0.001, "slept")) == "slept"
    sys.exit(7)


# ---------------------------------------------------------------------- an executor in need

_start_new_thread = threading._start_new_thread  # type: ignore[attr-defined]


@function()
def thread_limit(input: Ask) -> str:
    """No thread can be started, or can be again."""

    def fail(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    threading._start_new_thread = fail if input.how == "reached" else _start_new_thread  # type: ignore[attr-defined]
    return input.how


@function(concurrency=3)
def pool_note(input: Ask) -> str:
    input.say(input.how)
    time.sleep(input.seconds)
    return input.how


@function(concurrency=3)
def pool_waits_for_others(input: Ask) -> int:
    """Goes on when three are inside."""
    input.say("inside")
    end, inside = time.monotonic() + 10, 0
    while inside < 3 and time.monotonic() < end:
        time.sleep(0.005)
        inside = Path(input.note).read_text().count("inside")
    return inside


@function()
def break_executor(input: Ask) -> str:
    def fail(*_arguments: object) -> None:
        raise LookupError("out of order")

    making.Execution = fail  # type: ignore[misc, assignment]
    return input.how
