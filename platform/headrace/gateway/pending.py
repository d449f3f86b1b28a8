"""A call that was sent to a runner and whose answer is awaited."""

from __future__ import annotations

import asyncio

from headrace.link.frames import Answer, Call


class PendingCall:
    """Waits for one answer, or for whatever else wakes it.

    A plain future with `asyncio.wait_for` costs a task for each call; this costs a timer.

    Args:
        frame: the call as it was sent.
        loop: the running one.
    """

    __slots__ = ("_loop", "_waiter", "answer", "frame", "started")

    def __init__(self, frame: Call, loop: asyncio.AbstractEventLoop) -> None:
        self.frame = frame
        self.answer: Answer | None = None
        self.started = False
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None

    def deliver(self, answer: Answer) -> None:
        """The answer is there."""
        self.answer = answer
        self.wake()

    def wake(self) -> None:
        """End the present wait."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float) -> Answer | None:
        """The answer; None after so many seconds, or when woken without one."""
        if self.answer is None and seconds > 0:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(seconds, self.wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        return self.answer
