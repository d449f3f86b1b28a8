"""Functions that stand somewhere, each in its own way, until they are ended. No model, no torch."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import signal
import time
from pathlib import Path

from pydantic import BaseModel

from headrace import Budget, Call, function
from headrace.errors import CallStopped

AMPLE = Budget(sync=30, hard=600)
SOON = Budget(sync=30, soft=0.5, hard=600)


class Nothing(BaseModel):
    pass


@function(budget=AMPLE, attempts=1)
def sleeps(input: Nothing) -> Nothing:
    """Sleeps in Python."""
    rest_here()
    return Nothing()


def rest_here() -> None:
    time.sleep(600)


@function(budget=AMPLE, attempts=1, concurrency=2)
def sleeps_in_pool(input: Nothing) -> Nothing:
    """Does the same in another thread."""
    return sleeps.fn(input)


@function(budget=AMPLE, attempts=1)
async def sleeps_async(input: Nothing) -> Nothing:
    """Awaits in the event loop."""
    await asyncio.sleep(600)
    return Nothing()


@function(budget=AMPLE, attempts=1)
def computes(input: Nothing, *, call: Call) -> int:
    """Counts in Python until it is asked to end."""
    count = 0
    while True:
        call.check()
        count += 1


@function(budget=SOON, attempts=1)
def counts_in_c(input: Nothing) -> int:
    """Counts in C with the interpreter held, and no signal looked at."""
    return sum(itertools.repeat(1))


@function(budget=SOON, attempts=1)
def locked_in_c(input: Nothing) -> Nothing:
    """Sleeps in C with the interpreter held: waits for itself, which no signal ends."""
    mutex = ctypes.create_string_buffer(64)
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
    return Nothing()


@function(budget=SOON, attempts=1)
def catches(input: Nothing) -> Nothing:
    """Takes no notice of being stopped."""
    while True:
        with contextlib.suppress(CallStopped):
            time.sleep(0.05)


@function(budget=SOON, attempts=1)
def blocks_signals(input: Nothing) -> Nothing:
    """Lets no signal through, and waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    rest_here()
    return Nothing()


class Notebook(BaseModel):
    path: str


@function(budget=AMPLE, attempts=1, concurrency=2)
async def notes_its_id(input: Notebook, *, call: Call) -> Nothing:
    """Writes down what it is called, and ends when there is a second file."""
    draft = Path(f"{input.path}.draft")
    draft.write_text(call.job_id)
    draft.rename(input.path)
    while not Path(f"{input.path}.end").exists():
        await asyncio.sleep(0.01)
    return Nothing()
