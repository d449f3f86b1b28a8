"""Functions that run beside each other."""

from __future__ import annotations

import asyncio
import threading
import time

from executor_functions import Ask

from headrace import Budget, Call, function

_lock = threading.Lock()
_inside = {"one": 0, "many": 0, "other": 0}
_most = dict.fromkeys(_inside, 0)


def _witness(name: str, seconds: float) -> int:
    """How many were inside at once, at most, while this one was."""
    with _lock:
        _inside[name] += 1
        _most[name] = max(_most[name], _inside[name])
    time.sleep(seconds)
    with _lock:
        _inside[name] -= 1
        return _most[name]


@function()
def one(input: Ask) -> int:
    return _witness("one", input.seconds)


@function()
def other(input: Ask) -> int:
    """Shares the main thread with `one`."""
    return _witness("one", input.seconds)


@function(concurrency=3)
def many(input: Ask) -> int:
    return _witness("many", input.seconds)


@function(concurrency=3, budget=Budget(sync=10, soft=5, hard=10))
def obey_many(input: Ask, *, call: Call) -> int:
    while True:
        call.check()
        time.sleep(0.002)


@function(concurrency=8)
async def together(input: Ask) -> float:
    await asyncio.sleep(input.seconds)
    return input.seconds


@function(concurrency=8, budget=Budget(sync=10, soft=0.2, hard=0.3))
async def block(input: Ask) -> int:
    """Blocks the loop that it shares with others."""
    time.sleep(60)
    return 0


@function(concurrency=8)
async def forever(input: Ask) -> int:
    await asyncio.Event().wait()
    return 0


@function(name="main", concurrency=4)
async def named_main(input: Ask) -> str:
    await asyncio.sleep(input.seconds)
    return input.text
