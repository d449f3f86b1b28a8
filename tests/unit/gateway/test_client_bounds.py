"""What a client may cost: long heads, slow bodies, unread answers, offers of other protocols, trailers."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from harness.http_server import run, server

from headrace.gateway.exchange import Exchange
from headrace.gateway.http import PACED_UNTIL, Connection
from headrace.gateway.problems import Problem

POST = b"POST /fn/echo HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Impatient(Connection):
    """Waits a little, as the gateway's does long."""

    head_s: ClassVar = 0.2
    body_s: ClassVar = 0.2
    answer_s: ClassVar = 0.2
    look_s: ClassVar = 0.05


class Idling(Impatient):
    """Keeps a connection without a request for a moment only."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.timeout_keep_alive = 0.3


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Tells what it was sent; reads bodies as calls are read."""
    exchange: Any = SimpleNamespace(headers={}, receive=receive, bytes_in=0)
    close: list[tuple[bytes, bytes]] = []
    status = 200
    try:
        body = await Exchange.read_body(exchange, 2**20)
    except Problem as problem:
        body, status, close = problem.code.encode(), problem.status, [(b"connection", b"close")]
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
    said = json.dumps({"path": scope["path"], "headers": headers, "body": body.decode()}).encode()
    start = {"status": status, "headers": [(b"content-length", b"%d" % len(said)), *close]}
    await send({"type": "http.response.start", **start})
    await send({"type": "http.response.body", "body": said})


async def leave(scope: Any, receive: Any, send: Any) -> None:
    """Waits for the client to leave."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def everything(address: tuple[str, int], *parts: bytes) -> bytes:
    """All that comes until the server closes; parts are sent one by one."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    finally:
        writer.close()


async def answers(address: tuple[str, int], count: int, *parts: bytes) -> list[dict[str, Any]]:
    """So many answers of `echo`."""
    reader, writer = await asyncio.open_connection(*address)
    found: list[dict[str, Any]] = []
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        for _ in range(count):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            found.append(json.loads(await reader.readexactly(length)))
    finally:
        writer.close()
    return found


# ---------------------------------------------------------------------- heads


@pytest.mark.parametrize(
    "start",
    [b"GET /", POST + b"X-Long: ", POST + b"X-Name", b"\r\n"],
    ids=["URL", "value", "name", "empty lines"],
)
def test_a_head_without_an_end_is_refused(start: bytes) -> None:
    more = b"\r\n" * 2**13 if start == b"\r\n" else b"a" * 2**14

    async def scenario() -> None:
        async with server(echo, Impatient) as address:
            answer = await everything(address, start, *[more] * 5)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
            assert b"content-type: application/problem+json" in head
            document = json.loads(body)
            assert (document["status"], document["title"]) == (431, "Request Header Fields Too Large")
            assert f"x-request-id: {document['request_id']}".encode() in head

    run(scenario)


def test_a_head_is_measured_without_what_comes_with_it() -> None:
    body = b"x" * 2**19

    def request(filler: int) -> bytes:
        return POST + b"Content-Length: %d\r\nX-Long: %b\r\n\r\n" % (len(body), b"a" * filler) + body

    async def scenario() -> None:
        async with server(echo, Impatient) as address:
            (answer,) = await answers(address, 1, request(2**16 - 200))
            assert len(answer["body"]) == len(body)
            assert (await everything(address, request(2**16))).startswith(b"HTTP/1.1 431 ")

    run(scenario)


def test_chunk_extensions_and_trailers_without_an_end_are_refused() -> None:
    async def send_on(address: tuple[str, int], start: bytes) -> None:
        _, writer = await asyncio.open_connection(*address)
        writer.write(CHUNKED + start)
        while True:
            writer.write(b"a" * 2**14)
            await writer.drain()
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with server(leave) as address:
            for start in (b"1;", b"1\r\nx\r\n0\r\nX-Long: "):
                with pytest.raises(ConnectionError):
                    await send_on(address, start)

    run(scenario)


def test_a_body_in_pieces_of_one_byte_is_read() -> None:
    async def scenario() -> None:
        async with server(echo) as address:
            (answer,) = await answers(address, 1, CHUNKED + b"1\r\nx\r\n" * 50_000, b"0\r\n\r\n")
            assert answer["body"] == "x" * 50_000

    run(scenario)


def test_what_is_no_http_is_refused_with_a_problem() -> None:
    async def scenario() -> None:
        async with server(echo, Impatient) as address:
            for sent in (b"\x16\x03\x01\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"):
                head, _, body = (await everything(address, sent)).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
                assert json.loads(body)["status"] == 400

    run(scenario)


# ---------------------------------------------------------------------- other protocols, trailers


@pytest.mark.parametrize("offer", [b"h2c", b"websocket", b"TLS/1.0"])
@pytest.mark.parametrize("size", [0, 5, 200_000])
def test_an_offer_of_another_protocol_is_ignored(offer: bytes, size: int) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAM\r\n" % offer
    request = POST + upgrade + b"Content-Length: %d\r\n\r\n" % size + b"b" * size
    chunked = POST + upgrade + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"

    async def scenario() -> None:
        async with server(echo) as address:
            told = await answers(address, 3, request, chunked + request)
            assert [answer["body"] for answer in told] == ["b" * size, "abc", "b" * size]
            assert ["host", "x"] in told[0]["headers"]
            split = len(request) - size - 2  # within the end of the head
            (answer,) = await answers(address, 1, request[:split], request[split:])
            assert answer["body"] == "b" * size

    run(scenario)


def test_trailers_are_no_headers() -> None:
    trailer = b"3\r\nabc\r\n0\r\nAuthorization: Bearer x\r\nExpect: 100-continue\r\n\r\n"

    async def scenario() -> None:
        async with server(echo) as address:
            first, second = await answers(address, 2, CHUNKED + trailer + CHUNKED + trailer)
            assert [name for name, _ in first["headers"]] == ["host", "transfer-encoding"]
            assert first == second
            assert first["body"] == "abc"

    run(scenario)


# ---------------------------------------------------------------------- slow clients


@pytest.mark.parametrize("sent", [b"", b"\r\n", POST], ids=["nothing", "an empty line", "half a head"])
def test_a_head_that_does_not_come_ends_the_connection(sent: bytes) -> None:
    async def scenario() -> None:
        async with server(echo, Impatient) as address:
            assert await everything(address, sent) == b""
            reader, writer = await asyncio.open_connection(*address)
            writer.write(POST + b"Content-Length: 1\r\n\r\nx")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
            if sent:  # with nothing begun, the connection may stay idle
                writer.write(sent)
                assert await reader.read() == b""
            writer.close()

    run(scenario)


@pytest.mark.parametrize("sent", [b"", b"ab"])
def test_a_body_that_does_not_come_is_answered(sent: bytes) -> None:
    async def scenario() -> None:
        async with server(echo, Impatient) as address:
            answer = await everything(address, POST + b"Content-Length: 9\r\n\r\n" + sent)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"request-timeout" in answer

    run(scenario)


def test_a_connection_without_a_request_is_kept_for_a_while() -> None:
    async def scenario() -> None:
        async with server(echo, Idling) as address:
            reader, writer = await asyncio.open_connection(*address)
            for _ in range(2):
                writer.write(POST + b"Content-Length: 1\r\n\r\nx")
                sent_at = asyncio.get_running_loop().time()
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
            assert await reader.read() == b""  # the server has closed it
            assert asyncio.get_running_loop().time() - sent_at > 0.3
            writer.close()

    run(scenario)


def test_a_body_that_nobody_reads_ends_the_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body"})

    async def scenario() -> None:
        async with server(app, Impatient) as address:
            answer = await everything(address, POST + b"Content-Length: 9\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 404 ")

    run(scenario)


def test_a_call_may_take_longer_than_any_of_it() -> None:
    looks = 0
    enough = asyncio.Event()

    class Watched(Impatient):
        def _look(self) -> None:
            nonlocal looks
            super()._look()
            looks += 1
            if looks > 3 * self.head_s / self.look_s:
                enough.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await enough.wait()
        await echo(scope, receive, send)

    async def scenario() -> None:
        async with server(app, Watched) as address:
            request = POST + b"Content-Length: 1\r\n\r\nx"
            half = len(request) // 2  # the half of the next waits for the first's answer
            told = await answers(address, 1, request + request[:half])
            assert told[0]["body"] == "x"

    run(scenario)


def test_an_answer_that_nobody_takes_ends_the_connection() -> None:
    lost = asyncio.Event()

    class Watched(Impatient):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b"x" * 2**26
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def scenario() -> None:
        async with server(app, Watched) as address:
            with socket.create_connection(address) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                await lost.wait()
            # Who takes it gets it whole.
            request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            assert len(await everything(address, request)) > 2**26

    run(scenario)


@pytest.mark.parametrize("requests", [1, 2])
def test_an_answer_at_the_clients_pace_has_its_time(requests: int) -> None:
    ends = asyncio.Event()
    told: dict[str, float] = {}

    class Watched(Impatient):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            told["lost"] = time.monotonic()
            ends.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        told["until"] = scope[PACED_UNTIL] = time.monotonic() + 4 * Impatient.answer_s
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 2**26, "more_body": True})
        await send({"type": "http.response.body", "body": b"y", "more_body": True})

    async def scenario() -> None:
        async with server(app, Watched) as address:
            with socket.create_connection(address) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * requests)
                await ends.wait()
            assert told["lost"] >= told["until"]

    run(scenario)


@pytest.mark.parametrize("is_running", ["first", "second"])
def test_a_client_that_leaves_is_noticed_whatever_it_sent_ahead(is_running: str) -> None:
    left, runs = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != f"/{is_running}":
            await echo(scope, receive, send)
            return
        runs.set()
        await leave(scope, receive, send)
        left.set()

    async def scenario() -> None:
        async with server(app) as address:
            _, writer = await asyncio.open_connection(*address)
            for path in (b"first", b"second", b"third"):
                writer.write(b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            await runs.wait()
            writer.close()
            await left.wait()

    run(scenario)
