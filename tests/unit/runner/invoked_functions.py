"""Functions that call others, for one executor."""

from __future__ import annotations

import asyncio

from headrace import Batch, Call, Device, InvocationError, Limits, function, model, uses


@function()
def plain(input: int) -> int:
    return input


@function(limits=Limits(input=5 * 2**20))
def echo(input: str) -> str:
    return input


@function(concurrency=1)
async def asks_with_texts(input: list[int], *, call: Call) -> list[str]:
    """Asks at once with texts of so many bytes, and tells what went wrong."""
    asked = (call.invoke(echo, (one - 2) * "x") for one in input)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return [one.category if isinstance(one, InvocationError) else "" for one in answers]


@function(concurrency=1, attempts=3)
async def asks(input: int, *, call: Call) -> int:
    """Asks so often, one after the other, and adds up."""
    return sum([await call.invoke(plain, number) for number in range(input)])


@function(concurrency=1)
async def asks_at_once(input: int, *, call: Call) -> list[int]:
    return list(await asyncio.gather(*(call.invoke(plain, number) for number in range(input))))


@function(concurrency=1)
async def asks_twice_the_same(input: int, *, call: Call) -> list[int]:
    return list(await asyncio.gather(call.invoke(plain, input), call.invoke(plain, input)))


@function(concurrency=1)
async def gives_up(input: int, *, call: Call) -> str:
    """Waits so many milliseconds at most."""
    try:
        async with asyncio.timeout(input / 1000):
            await call.invoke(plain, 1)
    except TimeoutError:
        return "gave up"
    return "had it"


@function(concurrency=1)
async def tells(input: int, *, call: Call) -> str:
    try:
        await call.invoke(plain, input)
    except InvocationError as error:
        return error.category
    return ""


@function(concurrency=1)
async def passes_on(input: int, *, call: Call) -> int:
    return await call.invoke(plain, input)


@function(concurrency=1)
async def passes_on_in_a_group(input: int, *, call: Call) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(call.invoke(plain, input))


@function(batch=Batch(max_cost=100))
async def asks_joined(inputs: list[int], *, calls: list[Call]) -> list[int]:
    asked = (call.invoke(plain, one) for one, call in zip(inputs, calls, strict=True))
    return list(await asyncio.gather(*asked))


@model()
def nothing(_device: Device) -> None:
    """Needs no room."""


@function(concurrency=1)
async def asks_and_uses(input: int, *, call: Call, held: None = uses(nothing)) -> int:
    return await call.invoke(plain, input)


@function()
def uses_it(input: int, *, held: None = uses(nothing)) -> int:
    return input


@function(concurrency=2, attempts=1)
async def asks_beside(input: int, *, call: Call) -> int:
    return await call.invoke(plain, input)
