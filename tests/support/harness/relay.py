"""A stretch of network between two processes, which a test can break."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict

_NO_LINGER = struct.pack("ii", 1, 0)


class Relay:
    """Passes on what connections bring, in both directions, until it is told otherwise.

    Args:
        listening: where the one side dials.
        dial: makes a connection to the other side.
        url: what to give to those who shall go through it.
    """

    def __init__(self, listening: socket.socket, dial: Callable[[], socket.socket], url: str) -> None:
        self.url = url
        self._listening = listening
        self._dial = dial
        self._loop = asyncio.new_event_loop()
        self._passes = asyncio.Event()
        self._answers = asyncio.Event()
        self._is_cut = False
        self._last_words = b""
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay")
        self._thread.start()
        self._do(self._begin())

    @property
    def holds_answers(self) -> bool:
        """Whether nothing passes back now."""
        return not self._answers.is_set()

    def cut(self) -> None:
        """Reset all connections; new ones are reset as soon as they are made."""
        self._do(self._cut())

    def freeze(self) -> None:
        """Let nothing pass, and tell nobody: only time shows that the other side is gone."""
        self._do(self._freeze())

    def hold_answers(self, to: str) -> None:
        """Let nothing pass back any more once these words were said, on whatever connection; they arrive."""
        self._do(self._hold_answers(to.encode()))

    def restore(self, until: str = "") -> None:
        """Let all pass again, what came in meanwhile first, as a network does that sends again.

        Args:
            until: nothing passes back any more once these words were said, as after `hold_answers`.
        """
        self._do(self._restore(until.encode()))

    def close(self) -> None:
        self._do(self._cut())
        self._accepting.cancel()
        self._do(asyncio.wait({self._accepting}))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, step: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(10)

    async def _begin(self) -> None:
        await self._restore()
        self._listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def _cut(self) -> None:
        self._is_cut = True
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _freeze(self) -> None:
        self._is_cut = False
        self._passes.clear()
        self._answers.clear()

    async def _hold_answers(self, to: bytes) -> None:
        self._last_words = to

    async def _restore(self, until: bytes = b"") -> None:
        self._is_cut = False
        self._last_words = until
        self._passes.set()
        self._answers.set()

    async def _accept(self) -> None:
        while True:
            near, _ = await self._loop.sock_accept(self._listening)
            task = asyncio.create_task(self._carry(near))
            self._connections.add(task)
            task.add_done_callback(lambda task, near=near: self._ended(task, near))

    def _ended(self, task: asyncio.Task[None], near: socket.socket) -> None:
        self._connections.discard(task)
        _reset(near)  # here, as a task that is cancelled before it begins closes nothing

    async def _carry(self, near: socket.socket) -> None:
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            if self._is_cut:
                return
            await self._passes.wait()
            far = self._dial()
            sockets.callback(_reset, far)
            near.setblocking(False)
            far.setblocking(False)
            await _both(self._pump(near, far, self._passes), self._pump(far, near, self._answers))
            near.close()  # both sides have ended: nothing to reset
            far.close()

    async def _pump(self, source: socket.socket, sink: socket.socket, passes: asyncio.Event) -> None:
        while data := await self._loop.sock_recv(source, 2**16):
            await passes.wait()
            if self._last_words and self._last_words in data:
                self._answers.clear()
            await self._loop.sock_sendall(sink, data)
        await passes.wait()
        sink.shutdown(socket.SHUT_WR)


async def _both(*pumps: Coroutine[Any, Any, None]) -> None:
    """Run both directions; the first that fails ends the other."""
    tasks = [asyncio.create_task(pump) for pump in pumps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(connection: socket.socket) -> None:
    """Close it so that TCP resets it; a Unix socket's other side just sees the end."""
    if connection.fileno() >= 0:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        connection.close()


@contextlib.contextmanager
def database_relay(url: str) -> Iterator[Relay]:
    """A relay to a database; its `url` is the database's behind it."""
    place = conninfo_to_dict(url)
    host, port = str(place["host"]), int(place.get("port", 5432))
    target = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        user = urlsplit(url).netloc.rpartition("@")[0]
        port = listening.getsockname()[1]
        behind = urlsplit(url)._replace(netloc=f"{user}@127.0.0.1:{port}", query="")
        with _running(Relay(listening, lambda: _connect(target), behind.geturl())) as relay:
            yield relay


@contextlib.contextmanager
def gateway_relay(port: int) -> Iterator[Relay]:
    """A relay to whoever serves HTTP on this port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with _running(Relay(listening, lambda: _connect(("127.0.0.1", port)), url)) as relay:
            yield relay


@contextlib.contextmanager
def socket_relay(path: Path) -> Iterator[Relay]:
    """A relay that takes the place of a Unix socket on which somebody listens already.

    Who is connected before stays connected; who dials from now on goes through the relay.
    """
    moved = path.with_name(f"{path.name}.behind")
    path.rename(moved)  # a socket keeps its listener
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen(128)
            with _running(Relay(listening, lambda: _connect(str(moved)), f"unix:{path}")) as relay:
                yield relay
    finally:
        moved.rename(path)


@contextlib.contextmanager
def _running(relay: Relay) -> Iterator[Relay]:
    try:
        yield relay
    finally:
        relay.close()


def _connect(target: str | tuple[str, int]) -> socket.socket:
    if isinstance(target, tuple):
        return socket.create_connection(target, timeout=5)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(target)
    except OSError:
        connection.close()
        raise
    return connection
