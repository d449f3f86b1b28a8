"""What several threads of an executor do to its streams, and to the list of what runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from executor_functions import echo

from gpu_runner.executor.running import Running
from gpu_runner.executor.streaming import ItemStream
from headrace.sdk import Budget, Call, function


class AsyncReader(ItemStream):
    """Whose body stops waiting as soon as anybody looks whether it does."""

    @property
    def _wake(self) -> Any:
        wake, self.waits_with = self.waits_with, None
        return wake

    @_wake.setter
    def _wake(self, wake: Any) -> None:
        self.waits_with = wake


def test_credit_may_come_at_the_moment_at_which_a_body_waits_no_longer() -> None:
    call = Call(job_id="job", attempt=1, soft_at=0, deadline_at=0)
    stream = AsyncReader(echo, call, 1, lambda _: None)
    woken: list[bool] = []
    stream._wake = lambda: woken.append(True)
    stream.grant(1)
    stream.grant(1)
    assert woken == [True]


class Started:
    ids = (("job", 1),)


def test_the_end_of_a_start_leaves_another_under_its_id() -> None:
    running, first, second = Running(), Started(), Started()
    running.add(first)  # type: ignore[arg-type]
    running.add(second)  # type: ignore[arg-type]
    running.remove(first)  # type: ignore[arg-type]
    assert running.get("job", 1) is second
    running.remove(second)  # type: ignore[arg-type]
    assert running.get("job", 1) is None


@function(budget=Budget(sync=1, soft=1, hard=2), collect=list)
async def letters(_input: str) -> AsyncIterator[str]:
    """Says what the items are."""
    yield "a"


def test_what_an_asynchronous_body_yields_leaves_before_it_goes_on() -> None:
    """What is held until the loop's turn ends mustn't be held until a busy body waits for something."""
    made: list[str] = []
    left: list[str] = []

    async def body() -> AsyncIterator[str]:
        for letter in "abc":
            assert left == made
            made.append(letter)
            yield letter

    async def drain() -> Any:
        loop = asyncio.get_running_loop()
        call = Call(job_id="job", attempt=1, soft_at=1e12, deadline_at=1e12)
        stream = ItemStream(
            letters, call, 8, lambda item: loop.call_soon(left.append, item.item[1:2].decode())
        )
        return await stream.drain_async(body())

    assert asyncio.run(drain()) == ["a", "b", "c"] == left
