"""Batched functions in a pool of threads and in the event loop: with them, a thread reads the channel."""

from __future__ import annotations

import asyncio

from batched_functions import BATCH, LONG_S, Ask, upper, wait

from headrace import Call, TransientError, function


@function(batch=BATCH, concurrency=2)
def waits_in_a_pool(inputs: list[Ask], *, calls: list[Call]) -> list[str]:
    """Until the first is stopped, then answers all."""
    wait(inputs, calls)
    return upper(inputs)


@function(batch=BATCH, attempts=2)
async def together_async(inputs: list[Ask]) -> list[str | Exception]:
    await asyncio.sleep(0)
    if any(one.how == "raise" for one in inputs):
        raise RuntimeError("out of order")
    return [TransientError("later") if one.how == "later" else one.text.upper() for one in inputs]


@function(batch=BATCH)
async def waits_async(inputs: list[Ask], *, calls: list[Call]) -> list[str]:
    """Until the first is stopped, or it is cancelled."""
    inputs[0].say("running")
    async with asyncio.timeout(LONG_S):
        while not calls[0].is_stopped:
            calls[0].check()
            await asyncio.sleep(0.002)
    return upper(inputs)


@function(batch=BATCH)
async def sleeps_async(inputs: list[Ask]) -> list[str]:
    inputs[0].say("running")
    await asyncio.sleep(LONG_S)
    return upper(inputs)
