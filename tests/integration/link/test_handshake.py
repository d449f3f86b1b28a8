from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.errors import LinkError
from headrace.link import handshake
from headrace.link.frames import Call, Frame, Hello, Ping, Result, Service, decode
from headrace.link.handshake import GatewayHandshake, RunnerHandshake, proof
from headrace.link.stream import MAX_FRAME, FrameStream, pack

SECRET = b"k" * 32
SERVICES = (Service("echo", "1234", 2),)
NONCE = b"n" * 32


class Side:
    """What one side's callbacks were told."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[FrameStream[Frame]] = asyncio.get_running_loop().create_future()
        self.refused: asyncio.Queue[Exception] = asyncio.Queue()
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.lost: asyncio.Queue[Exception | None] = asyncio.Queue()


async def soon(awaitable: Any) -> Any:
    async with asyncio.timeout(10):
        return await awaitable


class Raw:
    """The bare other end, which may say anything."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._loop = asyncio.get_running_loop()

    def say(self, *frames: Any) -> None:
        self.socket.send(b"".join(frame if isinstance(frame, bytes) else pack(frame) for frame in frames))

    async def next(self) -> Frame:
        length = int.from_bytes(await self._exactly(4), "big")
        return decode(await self._exactly(length))

    async def silence(self) -> None:
        """Nothing more comes but the end."""
        assert await soon(self._loop.sock_recv(self.socket, 1)) == b""

    async def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            chunk = await soon(self._loop.sock_recv(self.socket, size - len(received)))
            assert chunk, "it hung up"
            received += chunk
        return received


@asynccontextmanager
async def _joined(stream: FrameStream[Frame], ours: socket.socket) -> AsyncIterator[None]:
    await asyncio.get_running_loop().create_unix_connection(lambda: stream, sock=ours)
    try:
        yield
    finally:
        stream.abort()
        await asyncio.sleep(0)


def make_runner(secret: bytes = SECRET) -> tuple[RunnerHandshake, Side]:
    side = Side()

    def ready(stream: FrameStream[Frame]) -> None:
        stream.on_frame, stream.on_lost = side.frames.put_nowait, side.lost.put_nowait
        side.ready.set_result(stream)

    made = RunnerHandshake(secret, "runner-1", lambda: SERVICES, ready, side.refused.put_nowait)
    return made, side


def make_gateway(secret: bytes = SECRET) -> tuple[GatewayHandshake, Side]:
    side = Side()
    return GatewayHandshake(secret, side.frames.put_nowait, side.lost.put_nowait), side


@asynccontextmanager
async def a_runner() -> AsyncIterator[tuple[Raw, Side]]:
    """A runner's side, with a bare gateway."""
    ours, theirs = socket.socketpair()
    made, side = make_runner()
    with theirs:
        async with _joined(made.stream, ours):
            yield Raw(theirs), side


@asynccontextmanager
async def a_gateway() -> AsyncIterator[tuple[Raw, GatewayHandshake, Side]]:
    """A gateway's side, with a bare runner."""
    ours, theirs = socket.socketpair()
    made, side = make_gateway()
    with theirs:
        async with _joined(made.stream, ours):
            yield Raw(theirs), made, side


@asynccontextmanager
async def both(gateway_secret: bytes, runner_secret: bytes) -> AsyncIterator[Any]:
    ours, theirs = socket.socketpair()
    gateway, gateway_side = make_gateway(gateway_secret)
    runner, runner_side = make_runner(runner_secret)
    async with _joined(gateway.stream, ours), _joined(runner.stream, theirs):
        yield gateway, gateway_side, runner, runner_side


def test_two_that_share_the_secret_are_linked() -> None:
    async def scenario() -> None:
        async with both(SECRET, SECRET) as (gateway, gateway_side, runner, runner_side):
            hello = await soon(gateway.complete())
            assert (hello.runner_id, hello.services) == ("runner-1", SERVICES)
            stream = await soon(runner_side.ready)
            assert stream is runner.stream
            assert gateway.stream.max_frame == runner.stream.max_frame == MAX_FRAME
            gateway.stream.send(Ping())
            assert await soon(runner_side.frames.get()) == Ping()
            runner.stream.send(Ping())
            assert await soon(gateway_side.frames.get()) == Ping()
            gateway.stream.close()
            assert await soon(runner_side.lost.get()) is None
            assert await soon(gateway_side.lost.get()) is None
            assert runner_side.refused.empty()

    asyncio.run(scenario())


@pytest.mark.parametrize(("gateways", "runners"), [(b"x" * 32, SECRET), (SECRET, b"x" * 32), (b"", SECRET)])
def test_two_with_different_secrets_are_not(gateways: bytes, runners: bytes) -> None:
    async def scenario() -> None:
        async with both(gateways, runners) as (gateway, gateway_side, _, runner_side):
            with pytest.raises(LinkError):
                await soon(gateway.complete())
            error = await soon(runner_side.refused.get())
            assert "doesn't know the link secret" in str(error)
            assert not runner_side.ready.done()
            assert gateway_side.lost.empty()

    asyncio.run(scenario())


def test_a_runner_tells_nothing_but_its_nonce_before_the_proof() -> None:
    async def scenario() -> None:
        async with a_runner() as (raw, side):
            hello = await raw.next()
            assert hello == Hello(1, hello.nonce)
            assert len(hello.nonce) == 32
            raw.say(Hello(1, NONCE, proof(b"wrong" * 8, "gateway", hello.nonce, NONCE)))
            await raw.silence()
            assert not side.ready.done()

    asyncio.run(scenario())


def test_a_gateway_says_nothing_before_the_runner_does() -> None:
    async def scenario() -> None:
        async with a_gateway() as (raw, gateway, _):
            completing = asyncio.ensure_future(gateway.complete())
            for _ in range(5):
                await asyncio.sleep(0)
            with pytest.raises(BlockingIOError):
                raw.socket.recv(1)
            raw.say(Hello(1, NONCE))
            hello = await raw.next()
            assert hello == Hello(1, hello.nonce, proof(SECRET, "gateway", NONCE, hello.nonce))
            raw.say(Hello(1, NONCE, proof(SECRET, "runner", hello.nonce, NONCE), "r", SERVICES))
            assert (await soon(completing)).services == SERVICES

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda nonce: Hello(2, NONCE, proof(SECRET, "gateway", nonce, NONCE)), "version 2"),
        (lambda nonce: Hello(0, NONCE, proof(SECRET, "gateway", nonce, NONCE)), "version 0"),
        (lambda nonce: Hello(1, NONCE), "doesn't know the link secret"),
        (lambda nonce: Hello(1, NONCE, proof(SECRET, "runner", nonce, NONCE)), "doesn't know"),
        (lambda nonce: Hello(1, NONCE, proof(SECRET, "gateway", NONCE, nonce)), "doesn't know"),
        (lambda nonce: Hello(1, nonce), "doesn't know"),  # its own words, reflected
        (lambda nonce: Hello(1, b"short", proof(SECRET, "gateway", nonce, b"short")), "wrong length"),
        (lambda nonce: Hello(1, b"", proof(SECRET, "gateway", nonce, b"")), "wrong length"),
        (lambda nonce: Ping(), "before its HELLO"),
        (lambda nonce: Call("j", "echo", "1234", b"{}", "o", 1, 1000, 250), "before its HELLO"),
    ],
)
def test_a_runner_refuses_whoever_proves_nothing(make: Any, reason: str) -> None:
    async def scenario() -> None:
        async with a_runner() as (raw, side):
            raw.say(make((await raw.next()).nonce))
            assert reason in str(await soon(side.refused.get()))
            await raw.silence()
            assert not side.ready.done()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (lambda: Hello(2, NONCE), None, "version 2"),
        (lambda: Hello(1, b"short"), None, "wrong length"),
        (lambda: Result("j", b"{}", 1, 0.0, 0.0), None, "before its HELLO"),
        (lambda: Hello(1, NONCE), lambda nonce: Hello(1, NONCE), "doesn't know the link secret"),
        (
            lambda: Hello(1, NONCE),
            lambda nonce: Hello(1, NONCE, proof(SECRET, "gateway", NONCE, nonce)),  # reflected
            "doesn't know",
        ),
        (
            lambda: Hello(1, NONCE),
            lambda nonce: Hello(1, b"m" * 32, proof(SECRET, "runner", nonce, b"m" * 32)),
            "changed its nonce",
        ),
        (lambda: Hello(1, NONCE), lambda nonce: Result("j", b"{}", 1, 0.0, 0.0), "before its HELLO"),
    ],
)
def test_a_gateway_refuses_a_runner_that_proves_nothing(first: Any, second: Any, reason: str) -> None:
    async def scenario() -> None:
        async with a_gateway() as (raw, gateway, side):
            completing = asyncio.ensure_future(gateway.complete())
            raw.say(first())
            if second is not None:
                raw.say(second((await raw.next()).nonce))
            with pytest.raises(LinkError, match=reason):
                await soon(completing)
            await raw.silence()
            assert side.lost.empty()
            assert side.frames.empty()

    asyncio.run(scenario())


def test_a_recorded_proof_opens_no_second_link() -> None:
    async def scenario() -> None:
        async with a_runner() as (raw, side):
            nonce = (await raw.next()).nonce
            recorded = pack(Hello(1, NONCE, proof(SECRET, "gateway", nonce, NONCE)))
            raw.say(recorded)
            await soon(side.ready)
        async with a_runner() as (raw, side):
            assert (await raw.next()).nonce != nonce
            raw.say(recorded)
            assert "doesn't know" in str(await soon(side.refused.get()))

    asyncio.run(scenario())


def test_silence_ends_the_handshake_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "TIMEOUT_S", 0.05)

    async def scenario() -> None:
        async with a_runner() as (raw, side):
            await raw.next()
            assert "in time" in str(await soon(side.refused.get()))
            await raw.silence()
        async with a_gateway() as (raw, gateway, gateway_side):
            raw.say(Hello(1, NONCE))
            with pytest.raises(LinkError, match="in time"):
                await soon(gateway.complete())
            await raw.next()
            await raw.silence()
            assert gateway_side.lost.empty()  # there was no link to lose

    asyncio.run(scenario())


def test_a_proven_link_has_no_handshake_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "TIMEOUT_S", 0.1)

    async def scenario() -> None:
        async with both(SECRET, SECRET) as (gateway, _, runner, runner_side):
            await soon(gateway.complete())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await runner_side.lost.get()
            assert gateway.stream.is_open
            assert runner.stream.is_open

    asyncio.run(scenario())


def test_nobody_holds_memory_before_the_proof() -> None:
    async def scenario() -> None:
        async with a_runner() as (raw, side):
            raw.say((2**20 + 1).to_bytes(4, "big"))
            assert "over the limit" in str(await soon(side.refused.get()))
        async with a_gateway() as (raw, gateway, _):
            raw.say((2**20 + 1).to_bytes(4, "big"))
            with pytest.raises(LinkError, match="over the limit"):
                await soon(gateway.complete())

    asyncio.run(scenario())


def test_a_runner_that_hangs_up_is_no_link() -> None:
    async def scenario() -> None:
        async with a_gateway() as (raw, gateway, side):
            raw.socket.shutdown(socket.SHUT_RDWR)
            with pytest.raises(LinkError, match="closed the connection"):
                await soon(gateway.complete())
            assert side.lost.empty()

    asyncio.run(scenario())


def test_somebody_who_only_looked_whether_the_port_is_open_is_no_event() -> None:
    async def scenario() -> None:
        async with a_runner() as (raw, side):
            await raw.next()
            raw.socket.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert side.refused.empty()
            assert not side.ready.done()

    asyncio.run(scenario())


def test_what_follows_the_proof_at_once_is_heard() -> None:
    """A gateway that was busy reads the runner's proof and its first PING in one chunk."""

    async def scenario() -> None:
        async with a_gateway() as (raw, gateway, side):
            completing = asyncio.ensure_future(gateway.complete())
            raw.say(Hello(1, NONCE))
            nonce = (await raw.next()).nonce
            raw.say(Hello(1, NONCE, proof(SECRET, "runner", nonce, NONCE), "r", SERVICES), Ping())
            assert (await soon(completing)).runner_id == "r"
            assert await soon(side.frames.get()) == Ping()

    asyncio.run(scenario())
