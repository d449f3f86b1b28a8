"""A call that was sent to a runner and whose answer is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.gateway.alarms import Alarms
from headrace.gateway.call_stream import CallStream
from headrace.link.frames import Answer, Call, Handover, Item, Lost, Progress, Started


class PendingCall:
    """Waits for one answer, or for whatever else wakes it.

    A plain future with `asyncio.wait_for` costs a task for each call; this costs a timer, or part of one.

    Args:
        frame: the call as it was sent.
        loop: the running one.
        stream: takes what is said of it meanwhile, where somebody follows it.
        hand_over: sends the runner a handover; None where it takes none.
    """

    __slots__ = (
        "_loop",
        "_waiter",
        "answer",
        "frame",
        "hand_over",
        "handover_at",
        "is_cut",
        "started",
        "stream",
    )

    def __init__(
        self,
        frame: Call,
        loop: asyncio.AbstractEventLoop,
        stream: CallStream | None = None,
        hand_over: Callable[[Handover], None] | None = None,
    ) -> None:
        self.frame = frame
        self.stream = stream
        self.hand_over = hand_over
        self.handover_at = 0.0  # by the loop's clock; 0: it isn't handed over
        self.is_cut = False
        self.answer: Answer | None = None
        self.started = False
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None

    def take(self, frame: Item | Progress | Started) -> None:
        """It runs, or has said something that isn't its answer."""
        if isinstance(frame, Started):
            self.started = True
        if self.stream is not None:
            self.stream.take(frame)

    def deliver(self, answer: Answer) -> None:
        """The answer is there."""
        self.answer = answer
        self.wake()

    def cut(self) -> None:
        """The link is lost, and what becomes of the call there will never be said.

        Whether it had started isn't known unless the runner said so: it counts as a start. But nothing says
        that it was the reason: its next start needn't be alone.
        """
        self.is_cut = True
        self.deliver(Lost(self.frame.job_id, self.frame.attempt, charged=True, suspect=False))

    def wake(self) -> None:
        """End the present wait."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait_briefly(self, alarms: Alarms) -> Answer | None:
        """The answer; None when the alarm rings, or when woken without one."""
        if self.answer is None:
            self._waiter = self._loop.create_future()
            alarms.set(self._waiter)
            await self._waiter
        return self.answer

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
