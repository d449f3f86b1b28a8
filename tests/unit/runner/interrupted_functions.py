"""Functions that go on until they are interrupted: in the main thread, in a pool, and in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, field_validator

from headrace import Call, PermanentError, function
from headrace.errors import CallStopped

LONG_S = 60.0


class Ask(BaseModel):
    how: str = ""
    note: str = "/dev/null"
    seconds: float = 0.0

    def say(self, words: str) -> None:
        with Path(self.note).open("a") as file:
            file.write(f"{words}\n")


class Slow(BaseModel):
    seconds: float
    note: str

    @field_validator("note")
    @classmethod
    def take_long(cls, note: str) -> str:
        Path(note).write_text("decoding\n")
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
        return note


class LibraryError(Exception):
    """What a library makes of whatever it catches."""


def sleeps() -> None:
    time.sleep(LONG_S)


def locks() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def waits() -> None:
    threading.Event().wait()


def reads() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def computes() -> None:
    steps = 0
    while True:
        steps += 1


def runs_a_program() -> None:
    subprocess.run(["sleep", str(LONG_S)], check=True)


def awaits() -> None:
    asyncio.run(asyncio.sleep(LONG_S))


def wraps() -> None:
    try:
        naps()
    except Exception as error:
        raise LibraryError("it broke") from error


def hides() -> None:
    try:
        naps()
    except Exception:
        raise LibraryError("it broke") from None


def blames_itself() -> None:
    try:
        naps()
    except Exception as error:
        raise PermanentError("no luck") from error


def groups() -> None:
    try:
        naps()
    except Exception as error:
        raise ExceptionGroup("several", [ValueError("one"), error]) from None


def naps() -> None:
    while True:
        time.sleep(0.001)


BODIES: dict[str, Callable[[], None]] = {
    body.__name__: body
    for body in (
        sleeps,
        locks,
        waits,
        reads,
        computes,
        runs_a_program,
        awaits,
        naps,
        wraps,
        hides,
        blames_itself,
        groups,
    )
}


class SlowHandler(logging.Handler):
    """One that takes long for a line and passes over what goes wrong, as handlers do."""

    def __init__(self, input: Ask) -> None:
        super().__init__()
        self._input = input

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._input.say("logging")
            end = time.monotonic() + self._input.seconds
            while time.monotonic() < end:
                time.sleep(0.001)
        except Exception:
            self._input.say("swallowed")


def log_slowly(input: Ask) -> str:
    logger = logging.Logger("of a function")  # noqa: LOG001 - nobody else's
    logger.addHandler(SlowHandler(input))
    logger.warning("a line")
    input.say("logged")
    naps()
    return "never"


def go_on(input: Ask) -> str:
    try:
        input.say("running")
        BODIES[input.how]()
    except CallStopped as error:
        input.say(f"stopped: {error}")
        raise
    return input.how


@function()
def main_body(input: Ask) -> str:
    return go_on(input)


@function()
def logs(input: Ask) -> str:
    return log_slowly(input)


@function()
def echo(input: Ask) -> str:
    end = time.monotonic() + input.seconds
    while time.monotonic() < end:
        pass
    return input.how


@function()
def swallows(input: Ask) -> int:
    """Counts how often it is interrupted, for a while after the first time."""
    input.say("running")
    end, count = time.monotonic() + 10, 0
    while time.monotonic() < end:
        try:
            while time.monotonic() < end:
                time.sleep(0.001)
        except CallStopped:
            count += 1
            input.say("swallowed")
            end = time.monotonic() + input.seconds
    return count


@function()
def fails_by_itself(input: Ask) -> int:
    """Swallows the interruption, and fails for another reason later."""
    input.say("running")
    with contextlib.suppress(CallStopped):
        naps()
    raise PermanentError("for another reason")


@function()
def cleans_up(input: Ask, *, call: Call) -> str:
    """Hears of its end from `check`, and cleans up for a while."""
    input.say("running")
    try:
        while True:
            call.check()
            time.sleep(0.001)
    except CallStopped:
        input.say("cleaning")
        end = time.monotonic() + input.seconds
        while time.monotonic() < end:
            time.sleep(0.001)
        return "clean"


@function()
def wraps_a_check(input: Ask, *, call: Call) -> int:
    """Hears of its end from `check`, inside a library."""
    try:
        while True:
            call.check()
            time.sleep(0.001)
    except Exception as error:
        raise LibraryError("it broke") from error


@function()
def slow_input(input: Slow) -> str:
    Path(input.note).write_text("ran\n")
    return "ran"


@function()
def tells(input: Ask, *, call: Call) -> int:
    """Reports without a pause."""
    input.say("running")
    while True:
        call.progress(0.5, "x" * 500)


@function()
def checks(input: Ask, *, call: Call) -> int:
    """Looks up without a pause, in a thread of its own, and hears of nothing in the main one."""
    stopped = threading.Event()

    def look() -> None:
        while not stopped.is_set():
            try:
                call.check()
            except CallStopped:
                time.sleep(0.001)

    thread = threading.Thread(target=look)
    thread.start()
    input.say("running")
    try:
        return naps()  # type: ignore[func-returns-value, return-value]
    finally:
        stopped.set()
        thread.join()


@function()
def deaf(input: Ask) -> str:
    """Makes the signal come to nothing, and ends."""
    import signal  # noqa: PLC0415 - only here

    from gpu_runner.frames import INTERRUPT  # noqa: PLC0415 - only here

    if input.how == "handler":
        signal.signal(INTERRUPT, lambda *_: None)
    elif input.how == "ignored":
        signal.signal(INTERRUPT, signal.SIG_IGN)
    elif input.how == "default":
        signal.signal(INTERRUPT, signal.SIG_DFL)
    else:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    input.say("running")
    end = time.monotonic() + input.seconds
    while time.monotonic() < end:
        time.sleep(0.001)
    return input.how
