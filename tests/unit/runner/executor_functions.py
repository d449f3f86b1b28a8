"""Functions that misbehave in their executor, each in one way. No model, no torch."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pydantic import BaseModel

from headrace import (
    Budget,
    Call,
    InvalidInput,
    Limits,
    PermanentError,
    TransientError,
    function,
)


class Ask(BaseModel):
    seconds: float = 0.0
    text: str = ""


class BrokenError(PermanentError):
    def __str__(self) -> str:
        raise ValueError("not even its message")


@function()
def echo(input: Ask) -> str:
    return input.text


@function()
def whoami(input: Ask) -> int:
    return os.getpid()


@function(budget=Budget(sync=10, soft=0.2, hard=0.3))
def hang(input: Ask) -> int:
    """Holds the interpreter: only a kill ends it."""
    ctypes.PyDLL(None).usleep(int(60e6))
    return 0


@function(budget=Budget(sync=10, soft=0.2, hard=0.3))
def fork_and_hang(input: Ask) -> int:
    """Leaves a child behind that holds all that the executor had open."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    Path(input.text).write_text(str(pid))
    time.sleep(60)
    return 0


@function()
def crash(input: Ask) -> int:
    os._exit(9)


@function()
def segfault(input: Ask) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


@function(budget=Budget(sync=10, soft=0.3, hard=0.6))
def stop_self(input: Ask) -> int:
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0


@function(budget=Budget(sync=10, soft=5, hard=10))
def obey(input: Ask, *, call: Call) -> int:
    """Runs until it is told to stop."""
    if input.text:
        Path(input.text).write_text("running")
    while True:
        call.check()
        time.sleep(0.002)


@function(budget=Budget(sync=10, soft=0.1, hard=10))
def soft(input: Ask, *, call: Call) -> int:
    while True:
        call.check()
        time.sleep(0.002)


@function(budget=Budget(sync=10, soft=2, hard=5))
def remaining(input: Ask, *, call: Call) -> float:
    return call.remaining()


@function()
def noise(input: Ask) -> str:
    """Writes garbage wherever a process may write."""
    sys.stdout.write("garbage on stdout \x00\xff\n")
    sys.stdout.flush()
    sys.stderr.write("garbage on stderr\n")
    os.write(1, b"\x00\x00\x00\x05hello\xff\xfe")
    return input.text


@function()
def tell(input: Ask, *, call: Call) -> str:
    """Reports progress, over and over."""
    for step in range(200):
        call.progress(step / 200, "working" * 10)
    return input.text


@function()
def large(input: Ask) -> str:
    return "x" * (8 * 2**20)


@function(limits=Limits(output="1KiB"))
def too_large(input: Ask) -> str:
    return "x" * 2000


@function()
def leave_a_looker(input: Ask, *, call: Call) -> str:
    """A thread that looks up for stops long after the body has returned."""

    def look() -> None:
        end = time.monotonic() + input.seconds
        while time.monotonic() < end:
            call.check()

    threading.Thread(target=look, daemon=True).start()
    return input.text


@function()
def raises(input: Ask) -> int:
    error: BaseException = {
        "system-exit": SystemExit(3),
        "keyboard-interrupt": KeyboardInterrupt(),
        "generator-exit": GeneratorExit(),
        "cancelled": asyncio.CancelledError(),
        "memory": MemoryError("no room"),
        "recursion": RecursionError("too deep"),
        "runtime": RuntimeError("secret-in-a-message"),
        "permanent": PermanentError("it burnt down"),
        "surrogate": PermanentError("no file caf\udce9"),
        "broken": BrokenError(),
        "transient": TransientError("secret-in-a-message"),
        "invalid": InvalidInput("odd", path="/seconds"),
        "invalid-surrogate": InvalidInput("odd \udcff", path="/\udcff"),
        "invalid-object": InvalidInput(ValueError("odd"), path=3),  # type: ignore[arg-type]
    }[input.text]
    raise error


@function()
def lies(input: Ask) -> int:
    return "not a number"  # type: ignore[return-value]
