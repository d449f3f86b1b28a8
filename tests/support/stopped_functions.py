"""Functions that go on, each in its own way, until they are ended from outside, and note when that was.

Bodies in the main thread, in threads of a pool and in the event loop; each with ample time, and with a short
soft limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel

from headrace import Budget, Call, function
from headrace.errors import CallStopped

LONG_S = 60.0
SOFT_S = 0.5
AMPLE = Budget(sync=30, soft=50, hard=LONG_S)
SOON = Budget(sync=30, soft=SOFT_S, hard=LONG_S)


class Work(BaseModel):
    """What to do; where to note start and end; what to read from."""

    how: str = "nothing"
    path: str = "/dev/null"
    url: str = ""

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note the start, and the end with the name of the exception that brought it."""
        self._note("start")
        try:
            yield
        except BaseException as error:
            self._note("CallStopped" if isinstance(error, CallStopped) else type(error).__name__)
            raise
        self._note("returned")

    def _note(self, what: str) -> None:
        with Path(self.path).open("a") as file:
            file.write(f"{what} {time.monotonic()}\n")


def checks(input: Work, call: Call) -> None:
    while True:
        call.check()
        time.sleep(0.01)


def sleeps(input: Work, call: Call) -> None:
    time.sleep(LONG_S)


def naps(input: Work, call: Call) -> None:
    while True:
        time.sleep(0.05)


def computes(input: Work, call: Call) -> None:
    steps = 0
    while True:
        steps += 1


def reads(input: Work, call: Call) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def waits(input: Work, call: Call) -> None:
    subprocess.run(["sleep", str(LONG_S)], check=True)


def streams(input: Work, call: Call) -> None:
    with urllib.request.urlopen(input.url) as response:
        while response.read1():
            pass


BODIES: dict[str, Callable[[Work, Call], None]] = {
    body.__name__: body for body in (checks, sleeps, naps, computes, reads, waits, streams)
}


@function(budget=AMPLE)
def runs(input: Work, *, call: Call) -> int:
    """Goes on for ever, in the main thread; answers at once where there is nothing to do."""
    if input.how != "nothing":
        with input.noted():
            BODIES[input.how](input, call)
    return os.getpid()


@function(budget=SOON)
def runs_soon(input: Work, *, call: Call) -> int:
    """Does the same, and has little time."""
    return runs.fn(input, call=call)


@function(budget=AMPLE, concurrency=4)
def runs_in_pool(input: Work, *, call: Call) -> int:
    """Does the same in another thread."""
    return runs.fn(input, call=call)


@function(budget=SOON, concurrency=4)
def runs_in_pool_soon(input: Work, *, call: Call) -> int:
    """Does the same in another thread, and has little time."""
    return runs.fn(input, call=call)


@function(budget=AMPLE, concurrency=4)
async def runs_async(input: Work) -> int:
    """Waits for ever, in the event loop; answers at once where there is nothing to do."""
    import httpx2  # noqa: PLC0415 - not when the module is imported, as authors are told

    match input.how:
        case "sleeps":
            with input.noted():
                await asyncio.sleep(LONG_S)
        case "streams":
            with input.noted():
                async with (
                    httpx2.AsyncClient(timeout=LONG_S, trust_env=False) as client,
                    client.stream("GET", input.url) as response,
                ):
                    async for _ in response.aiter_bytes():
                        pass
        case _:
            pass
    return os.getpid()


@function(budget=SOON, concurrency=4)
async def runs_async_soon(input: Work) -> int:
    """Does the same, and has little time."""
    return await runs_async.fn(input)
