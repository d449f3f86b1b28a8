from __future__ import annotations

import asyncio
import socket
from typing import Any

from harness.http_server import run, server

from headrace.gateway.http import _Joined


class Transport:
    """Records what reaches the wire, in order."""

    def __init__(self) -> None:
        self.events: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.events.append(data)

    def close(self) -> None:
        self.events.append("close")

    def is_closing(self) -> bool:
        return "close" in self.events


def joined() -> tuple[Any, Transport]:
    transport = Transport()
    return _Joined(transport, asyncio.get_running_loop()), transport  # type: ignore[arg-type]


def test_writes_of_one_iteration_leave_together_and_in_order() -> None:
    async def scenario() -> None:
        wrapped, transport = joined()
        for part in (b"head ", b"body ", b"end"):
            wrapped.write(part)
        assert transport.events == []
        await asyncio.sleep(0)
        assert transport.events == [b"head body end"]
        wrapped.write(b"next")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.events == [b"head body end", b"next"]

    run(scenario)


def test_closing_writes_what_is_left_first_and_nothing_twice() -> None:
    async def scenario() -> None:
        wrapped, transport = joined()
        wrapped.write(b"a")
        wrapped.write(b"b")
        wrapped.close()
        assert transport.events == [b"ab", "close"]
        await asyncio.sleep(0)
        assert transport.events == [b"ab", "close"]
        assert wrapped.is_closing()  # as of the transport itself

    run(scenario)


def answers(body: bytes, *, chunks: int = 1, headers: list[tuple[bytes, bytes]] | None = None) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        length = [(b"content-length", b"%d" % (len(body) * chunks))]
        await send({"type": "http.response.start", "status": 200, "headers": length + (headers or [])})
        for index in range(chunks):
            await send({"type": "http.response.body", "body": body, "more_body": index + 1 < chunks})

    return app


REQUEST = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


def test_head_and_body_arrive_in_one_packet() -> None:
    async def scenario() -> None:
        async with server(answers(b"hello")) as (host, port):
            with socket.create_connection((host, port)) as connection:
                connection.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(connection, REQUEST % 1)
                received = await loop.sock_recv(connection, 2**16)
                assert received.startswith(b"HTTP/1.1 200")
                assert received.endswith(b"\r\n\r\nhello")

    run(scenario)


def test_requests_sent_ahead_are_answered_in_order() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answers(scope["path"].encode())(scope, receive, send)

    async def scenario() -> None:
        async with server(app) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"".join(REQUEST % number for number in range(5)))
            bodies = [(await answer(reader))[1] for _ in range(5)]
            assert bodies == [b"/%d" % number for number in range(5)]
            writer.close()
            await writer.wait_closed()

    run(scenario)


def test_a_connection_that_is_to_be_closed_gets_its_whole_answer_first() -> None:
    body = b"x" * 5 * 2**20

    async def scenario() -> None:
        async with server(answers(body, headers=[(b"connection", b"close")])) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(REQUEST % 1)
            assert (await answer(reader))[1] == body
            assert await reader.read() == b""  # and then the end
            writer.close()
            await writer.wait_closed()

    run(scenario)


def test_a_long_answer_waits_for_its_reader() -> None:
    """Back-pressure still works: what isn't read doesn't pile up in the server."""
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        size, chunks = 2**16, 1000
        length = [(b"content-length", b"%d" % (size * chunks))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        for index in range(chunks):
            await send({"type": "http.response.body", "body": b"x" * size, "more_body": index + 1 < chunks})
            sent += size

    async def scenario() -> None:
        async with server(app) as address:
            reader, writer = await asyncio.open_connection(*address, limit=2**10)
            writer.write(REQUEST % 1)
            await reader.readuntil(b"\r\n\r\n")
            before = -1
            while sent != before:  # until it stands still
                before = sent
                await asyncio.sleep(0.05)
            received, stood_at = 0, sent
            while received < 2**16 * 1000:
                received += len(await reader.read(2**20))
            assert sent == received
            assert stood_at < 30 * 2**20  # of 62 MiB; what sockets hold counts too
            writer.close()
            await writer.wait_closed()

    run(scenario)
