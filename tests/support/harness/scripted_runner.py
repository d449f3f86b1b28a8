"""A runner that speaks the real link over a real socket and answers as a test tells it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from headrace.domain import RunnerInfo
from headrace.link.address import Address
from headrace.link.frames import Call, Credit, Frame, Handover, Ping, Pong, Service, Stop
from headrace.link.handshake import RunnerHandshake
from headrace.link.stream import FrameStream

SECRET = b"s" * 32
HANG_UP = object()
"""What a script returns to lose the link instead of answering."""

Script = Callable[[Call], Any]
"""Returns a frame, several, nothing, or `HANG_UP`."""


class ScriptedRunner:
    """One runner.

    Args:
        address: where it listens.
        script: what it does with a call.
        services: what it says that it serves.
        on_handover: what it does when it is asked to record a call; None: it says that it takes no handover.
    """

    def __init__(
        self,
        address: str,
        script: Script,
        services: Iterable[Service],
        on_handover: Callable[[Handover], Any] | None = None,
    ) -> None:
        self.runner_id = str(uuid.uuid4())
        self.script = script
        self.services = tuple(services)
        self.on_handover = on_handover
        self.calls: list[Call] = []
        self.heard: asyncio.Queue[Frame] = asyncio.Queue()
        self.refused: list[Exception] = []
        self.streams: list[FrameStream[Frame]] = []
        self.secret = SECRET
        self._address = Address.parse(address)
        self._server: asyncio.Server | None = None

    @property
    def info(self) -> RunnerInfo:
        """It as the registry has it."""
        interfaces = {service.function: service.interface for service in self.services}
        return RunnerInfo(self.runner_id, str(self._address), "default", interfaces)

    async def __aenter__(self) -> ScriptedRunner:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await settle()

    async def start(self) -> None:
        """Listen."""
        self._server, self._address = await self._address.listen(
            lambda: (
                RunnerHandshake(
                    self.secret,
                    self.runner_id,
                    lambda: self.services,
                    self._open,
                    self.refused.append,
                    hands_over=self.on_handover is not None,
                ).stream
            )
        )

    def stop(self) -> None:
        """Listen no more, and lose all links."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.lose_links()

    def lose_links(self) -> None:
        """End the links as a process does that is killed."""
        for stream in self.streams:
            stream.abort()
        self.streams.clear()

    def say(self, frame: Frame) -> None:
        """Send a frame on every link."""
        for stream in self.streams:
            stream.send(frame)

    async def hears(self, kind: type[Any]) -> Any:
        """The next frame of that kind."""
        async with asyncio.timeout(10):
            while True:
                frame = await self.heard.get()
                if isinstance(frame, kind):
                    return frame

    def _open(self, stream: FrameStream[Frame]) -> None:
        self.streams.append(stream)
        stream.on_frame = lambda frame: self._receive(stream, frame)
        stream.on_lost = lambda _: None

    def _receive(self, stream: FrameStream[Frame], frame: Frame) -> None:
        self.heard.put_nowait(frame)
        match frame:
            case Ping():
                stream.send(Pong())
            case Call():
                self.calls.append(frame)
                self._answer(stream, self.script(frame))
            case Handover() if self.on_handover is not None:
                self._answer(stream, self.on_handover(frame))
            case Stop() | Pong() | Credit():
                pass
            case _:
                raise AssertionError(f"a gateway sent {frame}")

    def _answer(self, stream: FrameStream[Frame], answer: Any) -> None:
        if answer is HANG_UP:
            stream.abort()
        elif answer is not None:
            for frame in answer if isinstance(answer, list) else [answer]:
                stream.send(frame)


async def settle() -> None:
    """Let the loop do what is due now: transports that were closed end, lost links are told."""
    for _ in range(10):
        await asyncio.sleep(0)
