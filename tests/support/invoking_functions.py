"""Functions that call each other. Files tell a test what was executed, and let it decide when to go on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import BaseModel, Field

from headrace import (
    Batch,
    Budget,
    Call,
    Device,
    InvalidInput,
    InvocationError,
    TransientError,
    function,
    model,
    uses,
)

PATIENT = Budget(sync=30, queue=60, soft=50, hard=60)


class Number(BaseModel):
    value: int = Field(ge=0)


class Numbers(BaseModel):
    values: list[int]


class Told(BaseModel):
    """What a body has learnt of a call that came to nothing."""

    category: str
    message: str
    job_id: str | None = None
    is_passing: bool = False
    retry_after_s: float | None = None


class Scene(BaseModel):
    """A folder for marks, and who is to have left one before a body goes on."""

    folder: str
    awaits: list[str] = []
    is_leaf: bool = False


def leave_mark(scene: Scene, name: str) -> None:
    """Add a line to a file."""
    with (Path(scene.folder) / name).open("a") as file:
        file.write("x\n")


async def marks(scene: Scene) -> None:
    """Return when all the marks are there."""
    while not all((Path(scene.folder) / name).exists() for name in scene.awaits):
        await asyncio.sleep(0.005)


@model()
def device_model(device: Device) -> str:
    return "a model"


@function(budget=PATIENT)
def double(input: Number, *, held: str = uses(device_model)) -> Number:
    """Uses the device, in the main thread's slot."""
    if input.value == 13:
        raise InvalidInput("13 can't be doubled", path="/value")
    return Number(value=2 * input.value)


@function(budget=PATIENT)
async def doubled(input: Number, *, call: Call, held: str = uses(device_model)) -> Number:
    """Has the device while it asks for the device."""
    return await call.invoke(double, input)


@function(budget=PATIENT, concurrency=4)
async def all_doubled(input: Numbers, *, call: Call) -> Numbers:
    """Asks for many at once."""
    answers = await asyncio.gather(*(call.invoke(double, Number(value=one)) for one in input.values))
    return Numbers(values=[one.value for one in answers])


@function(budget=PATIENT)
async def quadrupled(input: Number, *, call: Call) -> Number:
    """Asks for what asks."""
    return await call.invoke(doubled, await call.invoke(doubled, input))


@function(budget=PATIENT, batch=Batch(max_cost=100))
async def doubled_together(inputs: list[Number], *, calls: list[Call]) -> list[Number | Exception]:
    """Joined calls, each of which asks."""
    asked = (call.invoke(double, one) for one, call in zip(inputs, calls, strict=True))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return [one if isinstance(one, Number | Exception) else Exception() for one in answers]


@function(budget=PATIENT)
async def asks_the_joined(input: Numbers, *, call: Call) -> Numbers:
    asked = (call.invoke(doubled_together, Number(value=one)) for one in input.values)
    return Numbers(values=[one.value for one in await asyncio.gather(*asked)])


def total(numbers: list[int]) -> int:
    return sum(numbers)


@function(budget=PATIENT, collect=total)
async def counted(input: Number) -> AsyncIterator[int]:
    for number in range(input.value):
        yield number


@function(budget=PATIENT)
async def asks_what_streams(input: Number, *, call: Call) -> int:
    return await call.invoke(counted, input)


@function(budget=PATIENT)
async def told(input: Number, *, call: Call) -> Told:
    """Tells what went wrong."""
    try:
        await call.invoke(double, input)
    except InvocationError as error:
        return Told(
            category=error.category,
            message=error.message,
            job_id=error.job_id,
            is_passing=error.is_passing,
            retry_after_s=error.retry_after_s,
        )
    return Told(category="", message="")


@function(budget=PATIENT)
def asks_in_vain(input: Number, *, call: Call) -> int:
    """Isn't async."""
    call.invoke(double, input)
    return 0


@function(budget=PATIENT)
async def ping(input: Number, *, call: Call) -> Number:
    return await call.invoke(pong, input)


@function(budget=PATIENT)
async def pong(input: Number, *, call: Call) -> Number:
    return await call.invoke(ping, input)


@function(budget=PATIENT)
async def left(input: Scene, *, call: Call) -> str:
    """Calls `right` once both hold their only slots."""
    leave_mark(input, "left")
    await marks(input)
    if input.is_leaf:
        return "left"
    return f"left {await call.invoke(right, Scene(folder=input.folder, is_leaf=True))}"


@function(budget=PATIENT)
async def right(input: Scene, *, call: Call) -> str:
    leave_mark(input, "right")
    await marks(input)
    if input.is_leaf:
        return "right"
    return f"right {await call.invoke(left, Scene(folder=input.folder, is_leaf=True))}"


@function(budget=PATIENT, concurrency=8)
async def marked(input: Scene) -> float:
    """Leaves a mark at each execution; goes on when it may."""
    leave_mark(input, "executed")
    await marks(input)
    return time.time()


@function(budget=PATIENT, concurrency=8, attempts=2)
async def fails_once(input: Scene, *, call: Call) -> float:
    """Its first attempt fails when what it has called has succeeded."""
    at = await call.invoke(marked, Scene(folder=input.folder))
    if call.attempt == 1:
        raise TransientError("try again")
    return at


@function(budget=PATIENT, concurrency=8, attempts=2)
async def dies_once(input: Scene, *, call: Call) -> float:
    """Kills its process when what it has called has succeeded."""
    at = await call.invoke(marked, Scene(folder=input.folder))
    if call.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return at


@function(budget=PATIENT, concurrency=8)
async def waits(input: Scene, *, call: Call) -> float:
    """Waits as long as what it has called."""
    return await call.invoke(marked, Scene(folder=input.folder, awaits=input.awaits))


@function(budget=PATIENT, concurrency=8)
async def loses_patience(input: Scene, *, call: Call) -> str:
    """Gives up waiting once the call runs."""
    asking = asyncio.ensure_future(call.invoke(marked, Scene(folder=input.folder, awaits=["never"])))
    await marks(Scene(folder=input.folder, awaits=["executed"]))
    asking.cancel()
    await asyncio.wait([asking])
    return "gave up"
