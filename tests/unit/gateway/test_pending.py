from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.gateway.pending import PendingCall
from headrace.link.frames import Call, Lost, Result

CALL = Call("job", "echo", "1234", b"{}", "owner", 1, 1000, 250)
ANSWER = Result("job", b"{}", 1, 0.0, 0.0)


def run(scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await scenario(PendingCall(CALL, asyncio.get_running_loop()))

    asyncio.run(limited())


def test_an_answer_that_came_first_is_there_at_once() -> None:
    async def scenario(pending: PendingCall) -> None:
        pending.deliver(ANSWER)
        assert await pending.wait(1000) is ANSWER
        assert await pending.wait(0) is ANSWER

    run(scenario)


def test_an_answer_ends_the_wait() -> None:
    async def scenario(pending: PendingCall) -> None:
        waiting = asyncio.ensure_future(pending.wait(1000))
        await asyncio.sleep(0)
        assert not waiting.done()
        pending.deliver(ANSWER)
        assert await waiting is ANSWER

    run(scenario)


@pytest.mark.parametrize("seconds", [0.001, 0, -1])
def test_time_that_is_up_gives_none(seconds: float) -> None:
    async def scenario(pending: PendingCall) -> None:
        assert await pending.wait(seconds) is None
        pending.deliver(ANSWER)
        assert await pending.wait(seconds) is ANSWER

    run(scenario)


def test_a_wake_ends_one_wait_only() -> None:
    async def scenario(pending: PendingCall) -> None:
        pending.wake()  # nobody waits: not kept
        for _ in range(2):
            waiting = asyncio.ensure_future(pending.wait(1000))
            await asyncio.sleep(0)
            assert not waiting.done()
            pending.wake()
            pending.wake()
            assert await waiting is None
        waiting = asyncio.ensure_future(pending.wait(1000))
        await asyncio.sleep(0)
        pending.deliver(ANSWER)
        assert await waiting is ANSWER

    run(scenario)


def test_the_last_answer_counts_and_a_cancelled_wait_takes_none() -> None:
    async def scenario(pending: PendingCall) -> None:
        waiting = asyncio.ensure_future(pending.wait(1000))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        pending.wake()
        lost = Lost("job", 1, charged=True)
        pending.deliver(lost)
        assert await pending.wait(1000) is lost

    run(scenario)


def test_no_timer_outlives_its_wait() -> None:
    async def scenario(pending: PendingCall) -> None:
        loop: Any = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(pending.wait(1000))
        await asyncio.sleep(0)
        pending.deliver(ANSWER)
        await waiting
        assert all(timer.cancelled() for timer in loop._scheduled if timer.when() > loop.time() + 100)

    run(scenario)


def test_a_cut_link_loses_the_call_and_blames_nobody() -> None:
    async def scenario(pending: PendingCall) -> None:
        assert not pending.is_cut
        waiting = asyncio.ensure_future(pending.wait(1000))
        await asyncio.sleep(0)
        pending.cut()
        assert await waiting == Lost("job", 1, charged=True, suspect=False)
        assert pending.is_cut

    run(scenario)
