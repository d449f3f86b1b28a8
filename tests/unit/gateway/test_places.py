"""Who gets a place, and who has to wait for one."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from headrace.gateway.places import Places
from headrace.gateway.problems import Problem


def test_an_owner_takes_half_of_the_places_at_most() -> None:
    async def scenario() -> None:
        places = Places(4, 2, 0.05, "things")
        async with AsyncExitStack() as taken:
            for owner in ("a", "a", "b"):
                await taken.enter_async_context(places.take(owner))
            with pytest.raises(Problem, match="room for 4 things, 2 of one owner") as caught:
                await taken.enter_async_context(places.take("a"))
            assert caught.value.code == "busy"
            await taken.enter_async_context(places.take("c"))
            with pytest.raises(Problem):
                await taken.enter_async_context(places.take("d"))
        async with places.take("d"):  # all of them are free again
            pass

    asyncio.run(scenario())


def test_who_finds_no_place_gets_the_next_one() -> None:
    async def scenario() -> None:
        places = Places(4, 2, 5.0, "things")
        async with AsyncExitStack() as taken:
            for _ in range(2):
                await taken.enter_async_context(places.take("a"))
            waiting = asyncio.create_task(places.take("a").__aenter__())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting

    asyncio.run(scenario())
