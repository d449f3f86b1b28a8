"""A request has one header `Host`, and a valid one (RFC 9112, section 3.2)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from harness.http_server import run, server


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers 200."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


ONE_HOST = "A request has one header `Host`"


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [
        ("1.1", ["x"], 200),
        ("1.1", ["example.org:8000"], 200),
        ("1.1", ["[::1]:80"], 200),
        ("1.1", [""], 200),
        ("1.0", [], 200),
        ("1.1", [], 400),
        ("1.1", ["x", "x"], 400),
        ("1.0", ["x", "y"], 400),
        ("1.1", ["a b"], 400),
        ("1.1", ["a/b"], 400),
        ("1.1", ["a@b"], 400),
        ("1.1", ["x, y:80"], 400),
        ("1.1", ["x:y"], 400),
        ("1.1", ["[::1"], 400),
        ("1.1", ["\xe9"], 400),
    ],
)
@pytest.mark.parametrize("path", ["/fn/echo", "/jobs"])
def test_a_request_has_one_host(path: str, version: str, hosts: list[str], status: int) -> None:
    async def scenario() -> None:
        async with server(echo) as address:
            reader, writer = await asyncio.open_connection(*address)
            lines = "".join(f"Host: {host}\r\n" for host in hosts)
            writer.write(f"GET {path} HTTP/{version}\r\n{lines}Connection: close\r\n\r\n".encode("latin-1"))
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 %d " % status)
            if status == 400:
                assert b"application/problem+json" in head
                problem = json.loads(body)
                assert problem["detail"].startswith(ONE_HOST)
                assert b"x-request-id: " + problem["request_id"].encode() in head
            writer.close()
            await writer.wait_closed()

    run(scenario)


def test_a_connection_whose_host_was_good_is_looked_at_again() -> None:
    async def scenario() -> None:
        async with server(echo) as address:
            reader, writer = await asyncio.open_connection(*address)
            for host, status in (("x", 200), ("x", 200), ("y", 200), ("a b", 400)):
                writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 %d " % status)
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
            writer.close()
            await writer.wait_closed()

    run(scenario)
