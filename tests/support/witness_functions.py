"""Functions whose every start and end is on record in `harness.witness`'s table."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal

from pydantic import BaseModel, Field

from headrace import Budget, Call, TransientError, function

BUDGET = Budget(sync=10, queue=60, soft=50, hard=60)


class Task(BaseModel):
    """Where to write, how long to take, and a number to tell the tasks apart."""

    url: str
    seconds: float = Field(0, ge=0, le=60)
    number: int = 0


class Done(BaseModel):
    job_id: str
    attempt: int
    pid: int
    number: int


@function(concurrency=8, attempts=3, budget=BUDGET)
async def witnessed(input: Task, *, call: Call) -> Done:
    """Takes its time beside others."""
    await write(input.url, call, "start")
    await asyncio.sleep(input.seconds)
    await write(input.url, call, "end")
    return Done(job_id=call.job_id, attempt=call.attempt, pid=os.getpid(), number=input.number)


@function(concurrency=8, attempts=1, budget=BUDGET)
async def witnessed_once(input: Task, *, call: Call) -> Done:
    """Does the same, and may not be started again."""
    return await witnessed.fn(input, call=call)


@function(concurrency=25, attempts=3, budget=BUDGET)
async def witnessed_many(input: Task, *, call: Call) -> Done:
    """Does the same, beside many others."""
    return await witnessed.fn(input, call=call)


@function(concurrency=8, attempts=4, budget=BUDGET)
async def witnessed_neighbour(input: Task, *, call: Call) -> Done:
    """Does the same, and outlives three losses of its process."""
    return await witnessed.fn(input, call=call)


@function(concurrency=16, attempts=2, budget=Budget(sync=40, queue=60, hard=60))
async def witnessed_bystander(input: Task, *, call: Call) -> Done:
    """Takes its time at its first start only, and may lose its process once."""
    return await witnessed.fn(
        input if call.attempt == 1 else input.model_copy(update={"seconds": 0}), call=call
    )


@function(concurrency=4, attempts=3, budget=Budget(sync=10, queue=7200, hard=7200))
async def witnessed_unhurried(input: Task, *, call: Call) -> Done:
    """Does the same, and has hours for it."""
    return await witnessed.fn(input, call=call)


@function(attempts=3, budget=BUDGET)
async def witnessed_killer(input: Task, *, call: Call) -> Done:
    """Kills its process each time."""
    await write(input.url, call, "start")
    await asyncio.sleep(input.seconds)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives that")


@function(attempts=1, budget=BUDGET)
async def witnessed_killer_once(input: Task, *, call: Call) -> Done:
    """Leaves its process without a word, and may not be started again."""
    await write(input.url, call, "start")
    await asyncio.sleep(input.seconds)
    os._exit(0)


@function(attempts=3, budget=Budget(sync=10, queue=60, soft=1, hard=1.5))
async def witnessed_stuck(input: Task, *, call: Call) -> Done:
    """Holds the interpreter in C, so that its process is killed at its hard limit each time."""
    await write(input.url, call, "start")
    ctypes.PyDLL(None).usleep(int(input.seconds * 1e6))
    raise AssertionError("it is killed before")


@function(concurrency=8, attempts=4, budget=BUDGET)
async def witnessed_not_yet(input: Task, *, call: Call) -> Done:
    """Fails for now, always."""
    await write(input.url, call, "start")
    raise TransientError("not yet")


@function(concurrency=8, attempts=3, budget=BUDGET)
async def witnessed_swelling(input: Task, *, call: Call) -> Done:
    """Runs out of memory, always."""
    await write(input.url, call, "start")
    raise MemoryError


async def write(url: str, call: Call, what: str) -> None:
    import psycopg  # noqa: PLC0415 - not when the module is imported, as authors are told

    row = (call.job_id, call.attempt, os.getpid(), what)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "INSERT INTO witness (job_id, attempt, pid, what) VALUES (%s::uuid, %s, %s, %s)", row
        )


@function(concurrency=8, attempts=3, budget=BUDGET)
async def witnessed_caller(input: Task, *, call: Call) -> list[Done]:
    """Calls one that ends at once and one that takes its time, and waits for both."""
    await write(input.url, call, "start")
    quick = await call.invoke(witnessed, Task(url=input.url, number=1))
    slow = await call.invoke(witnessed_neighbour, input)
    await write(input.url, call, "end")
    return [quick, slow]
