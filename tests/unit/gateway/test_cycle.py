"""Answers that are sent as a whole: on the wire they are like any other."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from harness.http_server import run, server

from headrace.gateway.cycle import WHOLE
from headrace.gateway.http import Connection

LARGE = b"x" * 5 * 2**20
HEADERS = b"content-type: application/json\r\nx-request-id: r\r\n"


def post(path: str, *lines: str, body: bytes = b"{}", version: str = "1.1") -> bytes:
    head = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


async def answer_to(scope: Any, receive: Any) -> bytes:
    """Tells the path and the body, or much."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return LARGE if scope["path"] == "/large" else scope["path"].encode() + b" " + body


async def whole(scope: Any, receive: Any, send: Any) -> None:
    """Answers in one message."""
    assert WHOLE in scope["extensions"]
    body = await answer_to(scope, receive)
    await send({"type": WHOLE, "status": 200, "headers": HEADERS, "body": body})


async def plain(scope: Any, receive: Any, send: Any) -> None:
    """Answers the same in ASGI's own messages."""
    body = await answer_to(scope, receive)
    headers = [tuple(line.split(b": ")) for line in HEADERS.splitlines()]
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Patient(Connection):
    """Ends no connection by itself that the answer doesn't end."""

    look_s: ClassVar = 1000.0


async def everything(app: Any, sent: bytes) -> bytes:
    """All that a client gets that sends this and then no more."""
    async with server(app, Patient) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        received = await reader.read()
        writer.close()
        await writer.wait_closed()
    lines = received.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith(b"date: "))


CLOSES = "Connection: close"


@pytest.mark.parametrize(
    "sent",
    [
        post("/a", CLOSES),
        post("/a") + post("/b") + post("/c", CLOSES),
        post("/large") + post("/b", CLOSES),
        post("/a", version="1.0"),
        post("/a", "Connection: keep-alive", version="1.0"),
        post("/a?query", "Expect: 100-continue", CLOSES),
        post("/a%20b", CLOSES, body=b"x" * 2**18),
    ],
    ids=["close", "pipelined", "large", "1.0", "1.0-keep-alive", "continue", "large-body"],
)
def test_a_whole_answer_is_like_any_other_on_the_wire(sent: bytes) -> None:
    async def scenario() -> None:
        said = [await everything(app, sent) for app in (plain, whole)]
        assert said[0].count(b"HTTP/1.1 200 OK") == sent.count(b"POST")
        assert sorted(said[0].splitlines()) == sorted(said[1].splitlines())

    run(scenario)


def test_it_waits_for_a_client_that_does_not_read() -> None:
    answered = 0
    is_stuck = asyncio.Event()

    class Watched(Connection):
        def pause_writing(self) -> None:
            super().pause_writing()
            is_stuck.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal answered
        await whole(scope, receive, send)
        answered += 1

    async def scenario() -> None:
        async with server(app, Watched) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(post("/large") * 20)
            await is_stuck.wait()
            for _ in range(200):  # enough for all answers, were they not held back
                await asyncio.sleep(0)
            assert answered < 20
            await reader.readexactly(20 * len(LARGE))
            writer.close()
            await writer.wait_closed()
            while answered < 20:
                await asyncio.sleep(0)

    run(scenario)


def test_a_client_that_has_left_gets_none_and_the_application_goes_on() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        asked.set()
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": WHOLE, "status": 200, "headers": HEADERS, "body": b"{}"})
        ended.set()

    async def scenario() -> None:
        async with server(app) as address:
            _, writer = await asyncio.open_connection(*address)
            writer.write(post("/a"))
            await asked.wait()
            writer.close()
            await ended.wait()

    run(scenario)


def test_a_request_has_one_answer() -> None:
    refused = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(scope, receive, send)
        with pytest.raises(RuntimeError):
            await whole(scope, receive, send)
        refused.set()

    async def scenario() -> None:
        said = await everything(app, post("/a", CLOSES))
        assert refused.is_set()
        assert said.count(b"HTTP/1.1") == 1

    run(scenario)


def test_the_target_is_read_again_where_it_is_another() -> None:
    async def scenario() -> None:
        targets = ["/a", "/a", "/b?x=1", "/b?x=2", "/a%2Fb", "/a"]
        seen: list[tuple[str, bytes, bytes]] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append((scope["path"], scope["raw_path"], scope["query_string"]))
            await whole(scope, receive, send)

        await everything(app, b"".join(map(post, targets)) + post("/end", CLOSES))
        assert seen == [
            *[("/a", b"/a", b"")] * 2,
            *[("/b", b"/b", query) for query in (b"x=1", b"x=2")],
            ("/a/b", b"/a%2Fb", b""),
            ("/a", b"/a", b""),
            ("/end", b"/end", b""),
        ]

    run(scenario)
