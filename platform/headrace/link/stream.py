"""Length-prefixed msgpack frames over any asyncio byte stream."""

from __future__ import annotations

import asyncio
import fcntl
import termios
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

from headrace.errors import LinkError

MAX_FRAME = 256 * 2**20
"""The largest frame, in bytes; larger payloads belong in the object store."""

_PREFIX = 4

FrameT = TypeVar("FrameT")

encode = msgspec.msgpack.Encoder().encode


def pack(frame: object) -> bytes:
    """One frame with its length in front (four bytes, big-endian)."""
    payload = encode(frame)
    return len(payload).to_bytes(_PREFIX, "big") + payload


class FrameStream(asyncio.Protocol, Generic[FrameT]):
    """Sends and receives frames; writes of one loop iteration leave in one system call.

    Args:
        decode: turns a payload into a frame, raising `msgspec.MsgspecError` (or `RecursionError`)
            for anything else.
        on_frame: called with each frame; replace it to change who listens. A `LinkError` raised in it
            closes the stream.
        on_lost: called once when the stream has ended, with the reason.
        max_frame: the largest payload accepted, in bytes.
    """

    def __init__(
        self,
        decode: Callable[[bytes], FrameT],
        on_frame: Callable[[FrameT], None],
        on_lost: Callable[[Exception | None], None],
        *,
        max_frame: int = MAX_FRAME,
    ) -> None:
        self.on_frame = on_frame
        self.on_lost = on_lost
        self.max_frame = max_frame
        self.congested = False
        self._decode = decode
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._outgoing: list[bytes] = []
        self._broken: Exception | None = None
        self._ended = False

    # ------------------------------------------------------------------ sending

    def send(self, frame: object) -> None:
        """Queue one frame; a stream that has ended ignores it (`on_lost` has told)."""
        if self._transport is None:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(pack(frame))

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def close(self) -> None:
        """Send what is queued, then end the stream."""
        self._ended = True
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: Exception | None = None) -> None:
        """End the stream at once."""
        self._ended = True
        self._broken = self._broken or reason
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        """Whether frames can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unread(self) -> bool:
        """Whether the other side hasn't read all that was sent; where it is a process of this machine."""
        if self._transport is None:
            return False
        descriptor = self._transport.get_extra_info("socket").fileno()
        return any(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))

    # ------------------------------------------------------------------ receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            if self._received:
                self._received += data
                consumed = self._deliver(self._received)
                del self._received[:consumed]
            else:
                consumed = self._deliver(data)
                if consumed < len(data):
                    self._received += data[consumed:]
        except (LinkError, msgspec.MsgspecError, RecursionError) as error:
            self.abort(error)

    def _deliver(self, data: bytes | bytearray) -> int:
        """Hand on every whole frame, until the stream is ended here; returns how many bytes they took."""
        at, size = 0, len(data)
        while size - at >= _PREFIX and not self._ended:
            length = int.from_bytes(data[at : at + _PREFIX], "big")
            if length > self.max_frame:
                raise LinkError(f"a frame of {length} bytes is over the limit of {self.max_frame}")
            end = at + _PREFIX + length
            if end > size:
                break
            self.on_frame(self._decode(bytes(data[at + _PREFIX : end])))
            at = end
        return at

    def pause_writing(self) -> None:
        """Called by asyncio: the other side doesn't keep up."""
        self.congested = True

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self.congested = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        self._outgoing.clear()
        self.on_lost(self._broken or exc)
