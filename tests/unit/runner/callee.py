"""What running calls call, in the place of the ledger."""

from __future__ import annotations

import asyncio
from typing import Any

from gpu_runner.calls import LocalCall
from gpu_runner.frames import Invoke, Invoked


class Callee:
    """Answers when a test says so: with the input, unless it is told otherwise."""

    def __init__(self) -> None:
        self.asked: list[Invoke] = []
        self.cancelled: list[str] = []
        self._answers: list[asyncio.Future[dict[str, Any] | None]] = []
        self._news = asyncio.Event()

    async def output(self, asked: Invoke, call: LocalCall, made: list[str]) -> Invoked:
        made.append(f"child-{len(self.asked)}")
        answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.asked.append(asked)
        self._answers.append(answer)
        self._news.set()
        failure = await answer
        name = asked.job_id, asked.attempt, asked.number
        return Invoked(*name, asked.input) if failure is None else Invoked(*name, **failure)

    async def cancel(self, job_id: str, parent: LocalCall) -> None:
        self.cancelled.append(job_id)
        self._news.set()

    def answer(self, number: int, **failure: Any) -> None:
        self._answers[number].set_result(failure or None)

    async def until_asked(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.asked) < count:
                self._news.clear()
                await self._news.wait()

    async def until_cancelled(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.cancelled) < count:
                self._news.clear()
                await self._news.wait()
