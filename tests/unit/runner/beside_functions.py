"""Functions that go on beside others: in threads of a pool, and in the event loop."""

from __future__ import annotations

import asyncio
import time

from interrupted_functions import Ask, LibraryError, Slow, go_on, log_slowly, naps

from headrace import function
from headrace.errors import CallStopped


@function(concurrency=3)
def pool_body(input: Ask) -> str:
    return go_on(input)


@function(concurrency=2)
def pool_logs(input: Ask) -> str:
    return log_slowly(input)


@function(concurrency=1 + 1)
def pool_echo(input: Ask) -> str:
    """Has few threads, which are used again and again."""
    end = time.monotonic() + input.seconds
    while time.monotonic() < end:
        pass
    return input.how


@function(concurrency=2)
def pool_swallows(input: Ask) -> int:
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


@function(concurrency=2)
def pool_slow_input(input: Slow) -> str:
    return "ran"


@function(concurrency=4)
async def async_body(input: Ask) -> str:
    input.say("running")
    match input.how:
        case "sleeps":
            await asyncio.sleep(60)
        case "wraps":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise LibraryError("it broke") from None
        case "fails by itself":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                input.say("swallowed")
            raise LibraryError("for another reason")
        case _:
            naps()
    return input.how


@function(concurrency=4)
async def async_swallows(input: Ask) -> int:
    """Counts how often it is cancelled, for a while after the first time."""
    input.say("running")
    end, count = time.monotonic() + 10, 0
    while (left := end - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            count += 1
            input.say("swallowed")
            end = time.monotonic() + input.seconds
    return count
