"""Functions that yield, for tests of streams. No model, no torch."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from pydantic import BaseModel, Field

from headrace import Budget, Call, InvalidInput, Limits, PermanentError, TransientError, function


class Count(BaseModel):
    """So many items of that many characters, with a pause between two."""

    n: int = Field(ge=0)
    size: int = Field(default=0, ge=0)
    pause: float = Field(default=0, ge=0)


class Item(BaseModel):
    number: int
    text: str = ""


class Total(BaseModel):
    items: int
    characters: int


class Sign(BaseModel):
    """The body goes on when this file is there."""

    path: str


class Nothing(BaseModel):
    pass


class Ends(BaseModel):
    """How a stream ends behind so many items; `path` keeps the starts."""

    how: str
    after: int = 0
    path: str = ""


class Tally(BaseModel):
    path: str
    n: int = 1_000_000
    size: int = 0


def total(items: list[Item]) -> Total:
    return Total(items=len(items), characters=sum(len(item.text) for item in items))


LIMITS = Limits(input="16KiB", output="64MiB")


@function(collect=total, limits=LIMITS, concurrency=32, examples=[{"n": 2}])
def count(input: Count) -> Iterator[Item]:
    """Counts up."""
    for number in range(input.n):
        yield Item(number=number, text="x" * input.size)
        time.sleep(input.pause)


@function(collect=total, limits=LIMITS, concurrency=64)
async def count_async(input: Count) -> AsyncIterator[Item]:
    """The same, in the event loop."""
    for number in range(input.n):
        yield Item(number=number, text="x" * input.size)
        await asyncio.sleep(input.pause)


@function(collect="".join, concurrency=4)
def signed(input: Sign, *, call: Call) -> Iterator[str]:
    """Its second item waits until somebody has seen the first."""
    yield "first"
    while not Path(input.path).exists():
        call.check()
        time.sleep(0.005)
    yield "second"


@function()
def plain(input: Nothing, *, call: Call) -> int:
    """Doesn't stream; tells how far it is."""
    call.progress(0.5, "half")
    return 3


@function(collect=list, attempts=2)
def ends(input: Ends) -> Iterator[int]:
    """Ends as it is told."""
    if input.path:
        with Path(input.path).open("a") as file:
            file.write("start\n")
    yield from range(input.after)
    match input.how:
        case "permanent":
            raise PermanentError("no more today")
        case "transient":
            raise TransientError("for the moment")
        case "refused":
            raise InvalidInput("not this one", path="/how")
        case "type":
            yield "text"  # type: ignore[misc]  # what is declared is int: that is the point
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            raise KeyError(input.how)


@function(collect=list, budget=Budget(sync=10, queue=1, soft=1.5, hard=3, margin=1), attempts=1)
def ticks(input: Nothing) -> Iterator[int]:
    """Goes on until it is stopped."""
    number = 0
    while True:
        yield number
        number += 1
        time.sleep(0.05)


@function(collect=total, limits=LIMITS, concurrency=64, budget=Budget(soft=100, hard=120))
async def tally(input: Tally) -> AsyncIterator[Item]:
    """Says in a file how far it has got, and at its end that it has ended."""
    path = Path(input.path)
    try:
        for number in range(input.n):
            path.write_text(str(number))
            yield Item(number=number, text="x" * input.size)
            await asyncio.sleep(0)
    finally:
        path.with_suffix(".ended").touch()
