"""The executor's end of its socket pair: read by one thread, written by several."""

from __future__ import annotations

import socket
import threading
from collections import deque

from gpu_runner.frames import FromExecutor, Interrupt, Stop, ToExecutor, decode_to_executor
from headrace.link.stream import pack

_PREFIX = 4
_CHUNK = 2**16


class Channel:
    """Frames over a blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        self._chunk = memoryview(bytearray(_CHUNK))  # one for all: to make it anew costs more than to read
        self._received = bytearray()
        self._frames: deque[ToExecutor] = deque()
        self._held: list[bytes] = []

    def send(self, frame: FromExecutor) -> None:
        """Send one frame, behind what is held; safe from any thread. Raises like `receive`."""
        self._send(pack(frame))

    def hold(self, frame: FromExecutor) -> bool:
        """Keep one frame until another is sent, or `flush`; returns whether it is the first that is held."""
        data = pack(frame)
        with self._sending:
            self._held.append(data)
            return len(self._held) == 1

    def flush(self) -> None:
        """Send what is held; safe from any thread. Raises like `receive`."""
        self._send(b"")

    def _send(self, data: bytes) -> None:
        try:
            with self._sending:
                if self._held:
                    data = b"".join((*self._held, data))
                    # A body's thread may be interrupted after each call: none is between here and sending, as
                    # what is held is another's.
                    self._held = []
                if data:
                    self._socket.sendall(data)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> ToExecutor:
        """The next frame, waiting for it.

        Raises:
            EOFError: the supervisor is gone.
        """
        while not self._frames:
            self._read()
        return self._frames.popleft()

    def stops(self) -> list[Stop | Interrupt]:
        """The stops and interrupts that have arrived, without waiting; other frames stay.

        Raises like `receive`.
        """
        while self._read(socket.MSG_DONTWAIT):
            pass
        stops = [frame for frame in self._frames if isinstance(frame, Stop | Interrupt)]
        for frame in stops:
            self._frames.remove(frame)
        return stops

    def close(self) -> None:
        """Close this process's end; in a forked child, its parent's stays open."""
        self._socket.close()

    def _read(self, flags: int = 0) -> bool:
        """Read once; False when there was nothing and `flags` said not to wait."""
        try:
            size = self._socket.recv_into(self._chunk, _CHUNK, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise EOFError from error
        if not size:
            raise EOFError
        received = self._received
        received += self._chunk[:size]
        at = 0
        while len(received) - at >= _PREFIX:
            end = at + _PREFIX + int.from_bytes(received[at : at + _PREFIX], "big")
            if end > len(received):
                break
            self._frames.append(decode_to_executor(received[at + _PREFIX : end]))
            at = end
        del received[:at]
        return True
