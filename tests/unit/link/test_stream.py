from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LinkError
from headrace.link.frames import Frame, Item, Ping, Pong, Stop, decode
from headrace.link.stream import FrameStream, pack

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Runs a scenario on the standard loop and on the one that processes use."""
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield runner.run


class Ear:
    """What a stream delivered."""

    def __init__(self, **options: Any) -> None:
        self.frames: list[Frame] = []
        self.lost = asyncio.get_running_loop().create_future()
        self.stream: FrameStream[Frame] = FrameStream(decode, self.hear, self.end, **options)

    def hear(self, frame: Frame) -> None:
        self.frames.append(frame)

    def end(self, error: Exception | None) -> None:
        self.lost.set_result(error)  # a second time would raise

    async def reason(self) -> Exception | None:
        async with asyncio.timeout(10):
            return await self.lost

    async def heard(self, count: int) -> list[Frame]:
        async with asyncio.timeout(10):
            while len(self.frames) < count:
                await asyncio.sleep(0)
        return self.frames


@asynccontextmanager
async def wire(**options: Any) -> AsyncIterator[tuple[Ear, socket.socket]]:
    """A stream, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    ear = Ear(**options)
    await asyncio.get_running_loop().create_unix_connection(lambda: ear.stream, sock=ours)
    with theirs:
        yield ear, theirs
        ear.stream.abort()
        await ear.reason()


async def read(connection: socket.socket, size: int) -> bytes:
    received = b""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10):
        while len(received) < size:
            chunk = await loop.sock_recv(connection, size - len(received))
            assert chunk, "the stream ended early"
            received += chunk
    return received


# ---------------------------------------------------------------------- receiving


FRAMES: list[Frame] = [Stop("a"), Ping(), Item("b", 1, b"x" * 300), Pong({"echo": 2}), Item("c", 2, b"")]


@given(st.data())
def test_frames_arrive_whole_however_the_bytes_are_cut(data: st.DataObject) -> None:
    frames = data.draw(st.lists(st.sampled_from(FRAMES), max_size=8))
    sent = b"".join(map(pack, frames))
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=12).map(sorted))

    async def scenario() -> list[Frame]:
        ear = Ear()
        for begin, end in pairwise([0, *cuts, len(sent)]):
            ear.stream.data_received(sent[begin:end])
            arrived = sum(1 for size in accumulate(len(pack(frame)) for frame in frames) if size <= end)
            assert ear.frames == frames[:arrived]  # as soon as it is complete, and not before
        return ear.frames

    assert asyncio.run(scenario()) == frames


def test_one_byte_at_a_time(run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with wire() as (ear, peer):
            for byte in b"".join(map(pack, FRAMES)):
                await asyncio.get_running_loop().sock_sendall(peer, bytes([byte]))
            assert await ear.heard(len(FRAMES)) == FRAMES

    run(scenario())


def test_a_frame_over_the_limit_is_refused_by_its_length_alone(run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with wire(max_frame=1000) as (ear, peer):
            peer.send((1001).to_bytes(4, "big"))  # none of its bytes
            error = await ear.reason()
            assert isinstance(error, LinkError)
            assert "1001 bytes" in str(error)
            assert not ear.stream.is_open

    run(scenario())


def test_a_frame_at_the_limit_is_taken(run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        frame = Item("job", 1, b"x" * 500)
        async with wire(max_frame=len(pack(frame)) - 4) as (ear, peer):
            peer.send(pack(frame))
            assert await ear.heard(1) == [frame]

    run(scenario())


@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode(["WINK", "job"]),
        msgspec.msgpack.encode(["STOP"]),
        b"",
        b"\xc1",
        b"\x92\xa4STOP\xa1\xff",  # text that isn't UTF-8
        b"\x93\xa4STOP\xa1x" + b"\x91" * 100_000 + b"\xc0",  # nested deeper than the decoder goes
    ],
)
def test_what_is_no_frame_ends_the_stream(run: Callable[..., Any], payload: bytes) -> None:
    async def scenario() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with wire() as (ear, peer):
            peer.send(pack(Stop("first")) + len(payload).to_bytes(4, "big") + payload + pack(Stop("after")))
            assert isinstance(await ear.reason(), Exception)
            assert ear.frames == [Stop("first")]
        assert complaints == []

    run(scenario())


def test_an_error_of_the_link_in_the_listener_ends_the_stream(run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with wire() as (ear, peer):
            broken = LinkError("not now")

            def refuse(frame: Frame) -> None:
                raise broken

            ear.stream.on_frame = refuse
            peer.send(pack(Ping()))
            assert await ear.reason() is broken

    run(scenario())


def test_the_listener_may_change_between_two_frames_of_one_chunk() -> None:
    async def scenario() -> None:
        ear, later = Ear(), []

        def first(frame: Frame) -> None:
            ear.stream.on_frame = later.append

        ear.stream.on_frame = first
        ear.stream.data_received(pack(Ping()) + pack(Stop("x")))
        assert later == [Stop("x")]

    asyncio.run(scenario())


def test_nothing_is_delivered_after_the_stream_was_ended_here(run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with wire() as (ear, peer):

            def hang_up(frame: Frame) -> None:
                ear.hear(frame)
                ear.stream.close()

            ear.stream.on_frame = hang_up
            peer.send(pack(Stop("a")) + pack(Stop("b")))
            assert await ear.reason() is None
            assert ear.frames == [Stop("a")]

    run(scenario())


# ---------------------------------------------------------------------- sending and ending


def test_frames_leave_in_order_and_in_one_piece(run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with wire() as (ear, peer):
            for frame in FRAMES:
                ear.stream.send(frame)
            with pytest.raises(BlockingIOError):
                peer.recv(1)  # until the iteration ends
            wanted = b"".join(map(pack, FRAMES))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert peer.recv(2 * len(wanted)) == wanted

    run(scenario())


def test_closing_sends_what_is_queued(run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        big = Item("job", 1, b"x" * 2**20)  # over what the socket takes at once
        async with wire() as (ear, peer):
            ear.stream.send(Ping())
            ear.stream.send(big)
            ear.stream.close()
            wanted = pack(Ping()) + pack(big)
            assert await read(peer, len(wanted)) == wanted
            assert await ear.reason() is None
            with pytest.raises(AssertionError, match="ended early"):
                await read(peer, 1)

    run(scenario())


def test_aborting_gives_its_own_reason(run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with wire() as (ear, _):
            first = LinkError("first")
            ear.stream.abort(first)
            ear.stream.abort(LinkError("second"))
            assert await ear.reason() is first
            ear.stream.send(Ping())
            ear.stream.close()
            ear.stream.abort()
            assert not ear.stream.is_open

    run(scenario())


def test_an_end_by_the_other_side_is_told_once(run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with wire() as (ear, peer):
            peer.send(pack(Stop("a")) + pack(Stop("b"))[:5])  # half a frame is no frame
            peer.shutdown(socket.SHUT_RDWR)
            assert await ear.reason() is None
            assert ear.frames == [Stop("a")]

    run(scenario())


def test_back_pressure_is_seen_and_ends(run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with wire() as (ear, peer):
            big = Item("job", 1, b"x" * 16 * 2**20)
            assert not ear.stream.congested
            ear.stream.send(big)
            async with asyncio.timeout(10):
                while not ear.stream.congested:
                    await asyncio.sleep(0)
            await read(peer, len(pack(big)))
            async with asyncio.timeout(10):
                while ear.stream.congested:
                    await asyncio.sleep(0)

    run(scenario())


def test_what_cannot_be_encoded_is_the_senders_error_and_harms_no_other_frame() -> None:
    async def scenario() -> None:
        async with wire() as (ear, peer):
            with pytest.raises(UnicodeEncodeError):
                ear.stream.send(Stop("\ud800"))
            ear.stream.send(Ping())
            assert await read(peer, len(pack(Ping()))) == pack(Ping())

    asyncio.run(scenario())
