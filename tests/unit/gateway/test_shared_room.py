"""Who finds room, and who has to wait for it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from headrace.gateway.problems import Problem
from headrace.gateway.shared_room import SharedRoom


def test_an_owner_takes_half_of_the_room_at_most() -> None:
    async def scenario() -> None:
        room = SharedRoom(4, 2, 0.05, "things")
        async with AsyncExitStack() as taken:
            for owner in ("a", "a", "b"):
                await taken.enter_async_context(room.take(owner))
            with pytest.raises(Problem, match="room for 4 things, 2 of one owner") as caught:
                await taken.enter_async_context(room.take("a"))
            assert caught.value.code == "busy"
            await taken.enter_async_context(room.take("c"))
            with pytest.raises(Problem):
                await taken.enter_async_context(room.take("d"))
        async with room.take("d"):  # all of them are free again
            pass

    asyncio.run(scenario())


def test_who_finds_no_room_gets_what_is_free_next() -> None:
    async def scenario() -> None:
        room = SharedRoom(4, 2, 5.0, "things")
        async with AsyncExitStack() as taken:
            for _ in range(2):
                await taken.enter_async_context(room.take("a"))
            waiting = asyncio.create_task(room.take("a").__aenter__())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting

    asyncio.run(scenario())
