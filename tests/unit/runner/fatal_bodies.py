"""Functions that can't be ended in peace, that end their process, or that come close to it."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pydantic import BaseModel

from gpu_runner.frames import DUMP, INTERRUPT
from headrace import Budget, Call, Limits, function

SHORT = Budget(sync=30, soft=0.1, hard=0.8)
SOFT = Budget(sync=30, soft=0.1, hard=30)


class Ask(BaseModel):
    text: str = ""


class Odd(BaseException):
    """What no `except Exception` catches."""


@function()
def echo(input: Ask) -> str:
    return input.text


def endure() -> None:
    """Go on whatever is raised."""
    while True:
        try:
            while True:
                time.sleep(0.01)
        except BaseException:
            pass


# ---------------------------------------------------------------------- only a kill ends them


@function(budget=SHORT)
def swallows(input: Ask) -> int:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


@function(budget=SHORT)
def ignores_signals(input: Ask) -> int:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    return endure()  # type: ignore[func-returns-value, return-value]


@function(budget=SHORT)
def blocks_signals(input: Ask) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return endure()  # type: ignore[func-returns-value, return-value]


@function(budget=SHORT)
def takes_handlers_off(input: Ask) -> int:
    signal.signal(INTERRUPT, lambda *_: None)
    faulthandler.unregister(DUMP)
    faulthandler.cancel_dump_traceback_later()
    faulthandler.disable()
    os.kill(os.getpid(), DUMP)
    time.sleep(60)
    return 0


@function(budget=SHORT)
def holds_the_interpreter(input: Ask) -> int:
    """In C that looks for no signal; a sleep would be cut short by each."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return sum(itertools.repeat(1, 10**12))


@function(budget=SHORT)
def gives_itself_time(input: Ask, *, call: Call) -> int:
    call._soft_at = call._deadline_at = float("inf")
    call._look_up = None
    while True:
        call.check()
        with contextlib.suppress(Exception):
            time.sleep(0.01)


@function(budget=SHORT)
def swallows_a_frame(input: Ask) -> int:
    """Announces a frame that never comes whole: what is said after it is taken for its rest."""
    for descriptor in sockets():
        os.write(descriptor, (2**20).to_bytes(4, "big"))
    return 0


@function(budget=SHORT, concurrency=2)
async def swallows_its_cancel(input: Ask) -> int:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@function(budget=SHORT, concurrency=2)
async def keeps_the_loop(input: Ask) -> int:
    return endure()  # type: ignore[func-returns-value, return-value]


# ---------------------------------------------------------------------- their process ends


@function()
def overflows(input: Ask) -> int:
    """Runs out of the stack of C."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (2**16, hard))

    def deeper(depth: int) -> int:
        return sorted([depth], key=lambda one: deeper(one + 1))[0]

    sys.setrecursionlimit(100_000)
    return deeper(0)


@function()
def is_picked_by_the_kernel(input: Ask) -> int:
    """As when the machine runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@function()
def writes_everywhere(input: Ask) -> int:
    for descriptor in descriptors():
        with contextlib.suppress(OSError):
            os.write(descriptor, b"\xff" * 4096)
    time.sleep(30)
    return 0


@function()
def closes_everything(input: Ask) -> int:
    os.closerange(0, 1000)
    return 0


def descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - one that is closed again too


def sockets() -> list[int]:
    return [
        descriptor
        for descriptor in descriptors()
        if os.path.exists(path := f"/proc/self/fd/{descriptor}") and "socket:" in os.readlink(path)  # noqa: PTH110, PTH115 - of a link to no path
    ]


# ---------------------------------------------------------------------- they alone fail, or succeed


@function()
def raises_its_own(input: Ask) -> int:
    raise Odd


@function()
def recurses(input: Ask) -> int:
    return recurses.fn(input) + 1


@function()
def allocates(input: Ask) -> int:
    """Up to a limit of memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26, before[1]))
    try:
        held: list[bytes] = []
        while True:
            held.append(bytes(2**22))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@function()
def returns_too_much(input: Ask) -> str:
    return "x" * (100 * 2**20)


@function(limits=Limits(output="120MiB"))
def returns_much(input: Ask) -> str:
    return "x" * (100 * 2**20)


@function()
def leaves_things_running(input: Ask) -> int:
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
    threading.Thread(target=endure).start()
    return subprocess.Popen(["sleep", "300"]).pid


# ---------------------------------------------------------------------- they are interrupted


@function(budget=SOFT)
def sleeps(input: Ask) -> int:
    time.sleep(60)
    return 0


@function(budget=SOFT)
def sleeps_with_its_own_limits(input: Ask, *, call: Call) -> int:
    call._soft_at = call._deadline_at = float("inf")
    call._stopped = False
    time.sleep(60)
    return 0


@function(budget=SOFT, concurrency=2)
def computes_in_a_pool(input: Ask) -> int:
    steps = 0
    while True:
        steps += 1


@function(budget=SOFT, concurrency=2)
async def sleeps_in_the_loop(input: Ask) -> int:
    await asyncio.sleep(60)
    return 0


@function(budget=Budget(sync=30, soft=20, hard=30))
def patient(input: Ask) -> int:
    time.sleep(60)
    return 0
