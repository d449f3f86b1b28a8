from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.errors import LinkError
from headrace.link.frames import Ping
from headrace.link.liveness import DEAD_S, PING_S, Liveness


class _NoWait(selectors.DefaultSelector):
    """A selector that lets the loop's own clock jump to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout:
            self.slept += timeout
        return found


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when nothing else is to do, or when told to."""

    def __init__(self) -> None:
        self._jumps = _NoWait()
        self._stalled = 0.0
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.slept + self._stalled

    def stand_still(self, seconds: float) -> None:
        """As if the whole process had been stopped."""
        self._stalled += seconds


class Stream:
    """Stands for a frame stream: what was sent when, and why it was aborted."""

    def __init__(self, loop: Clock) -> None:
        self.loop = loop
        self.sent: list[float] = []
        self.aborted: tuple[float, Exception | None] | None = None

    def send(self, frame: object) -> None:
        assert isinstance(frame, Ping)
        self.sent.append(self.loop.time())

    def abort(self, reason: Exception | None = None) -> None:
        self.aborted = self.loop.time(), reason


@contextmanager
def clock() -> Iterator[Callable[[Callable[[Clock, Stream], Coroutine[Any, Any, None]]], None]]:
    with asyncio.Runner(loop_factory=Clock) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Clock)
        yield lambda scenario: runner.run(scenario(loop, Stream(loop)))


def test_an_answering_link_lives_on() -> None:
    async def scenario(loop: Clock, stream: Stream) -> None:
        liveness = Liveness(stream)  # type: ignore[arg-type]
        for _ in range(100):
            await asyncio.sleep(DEAD_S - 0.01)
            liveness.heard()
        assert stream.aborted is None
        assert len(stream.sent) == pytest.approx(100 * (DEAD_S - 0.01) / PING_S, abs=2)
        liveness.end()
        sent = len(stream.sent)
        await asyncio.sleep(10)
        assert len(stream.sent) == sent

    with clock() as run:
        run(scenario)


@pytest.mark.parametrize("heard_at", [0.0, 0.3, 0.99, 7.5])
def test_silence_ends_the_link_after_three_seconds_and_before_the_fifth(heard_at: float) -> None:
    async def scenario(loop: Clock, stream: Stream) -> None:
        liveness = Liveness(stream)  # type: ignore[arg-type]
        while (left := heard_at - loop.time()) > 0:
            await asyncio.sleep(min(1.0, left))
            liveness.heard()
        await asyncio.sleep(20)
        assert stream.aborted is not None
        when, reason = stream.aborted
        assert DEAD_S < when - heard_at <= DEAD_S + 2 * PING_S
        assert isinstance(reason, LinkError)
        assert max(stream.sent) < when  # and asks no more

    with clock() as run:
        run(scenario)


@pytest.mark.parametrize("stall", [1.5, 3.5, 60.0])
@pytest.mark.parametrize("before", [0.5, 2.9])
def test_a_process_that_stood_still_does_not_blame_the_other(before: float, stall: float) -> None:
    async def scenario(loop: Clock, stream: Stream) -> None:
        liveness = Liveness(stream)  # type: ignore[arg-type]
        await asyncio.sleep(before)
        loop.stand_still(stall)
        await asyncio.sleep(0.9)  # what came meanwhile is read at leisure
        assert stream.aborted is None
        liveness.heard()
        await asyncio.sleep(DEAD_S - 0.1)
        assert stream.aborted is None
        await asyncio.sleep(10)
        assert stream.aborted is not None  # but real silence still counts

    with clock() as run:
        run(scenario)
