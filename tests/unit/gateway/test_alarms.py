from __future__ import annotations

import asyncio
from typing import Any

from headrace.gateway.alarms import Alarms


def run(scenario: Any, seconds: float) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await scenario(Alarms(seconds, asyncio.get_running_loop()))

    asyncio.run(limited())


def waiter() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def test_each_rings_in_turn_and_not_before_its_time() -> None:
    async def scenario(alarms: Alarms) -> None:
        loop = asyncio.get_running_loop()
        rang: list[int] = []
        due: list[float] = []
        waiters = [waiter() for _ in range(3)]
        for number, one in enumerate(waiters):
            one.add_done_callback(lambda _, number=number: rang.append(number))
            due.append(loop.time() + alarms.seconds)
            alarms.set(one)
            await asyncio.sleep(0.005)
        for one, at in zip(waiters, due, strict=True):
            await one
            assert loop.time() >= at - 0.001  # the loop's clock is that coarse
        await asyncio.sleep(0)
        assert rang == [0, 1, 2]

    run(scenario, 0.03)


def test_what_is_done_or_cancelled_is_passed_over() -> None:
    async def scenario(alarms: Alarms) -> None:
        done, cancelled, late = waiter(), waiter(), waiter()
        for one in (done, cancelled, late):
            alarms.set(one)
        done.set_result(None)
        cancelled.cancel()
        await late
        assert cancelled.cancelled()

    run(scenario, 0.01)


def test_one_timer_serves_all_and_none_is_left_behind_them() -> None:
    async def scenario(alarms: Alarms) -> None:
        loop: Any = asyncio.get_running_loop()
        before = len(loop._scheduled)
        waiters = [waiter() for _ in range(100)]
        for one in waiters:
            alarms.set(one)
        assert len(loop._scheduled) == before + 1
        await waiters[-1]
        while alarms._timer is not None:
            await asyncio.sleep(0.001)
        again = waiter()
        alarms.set(again)  # and it is set anew
        await again

    run(scenario, 0.01)
