"""How the gateway meets its clients: every answer is traced, and many connections don't end it."""

from __future__ import annotations

import contextlib
import socket
import uuid

import httpx2
import psutil
import pytest
from harness.site import Site, eventually


def exchange(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(2**16), b""))


@pytest.mark.parametrize(
    ("path", "status", "event"),
    [
        ("/fn/", 405, "request"),
        ("/fn/a/b", 404, "request"),
        ("/fn/echo/b", 404, "request"),
        ("/fn//", 405, "request"),
        ("/fn/a%2Fb", 404, "request"),
        ("//fn/echo", 200, "call"),
        ("/fn/echo/", 200, "call"),
        ("/fn//echo", 200, "call"),
    ],
)
def test_every_answer_has_its_id_and_one_line(served: Site, path: str, status: int, event: str) -> None:
    request_id = uuid.uuid4().hex
    body = b'{"text": "a"}'
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nX-Request-Id: {request_id}\r\n\r\n"
    )
    answer = exchange(served.port, head.encode() + body)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.lower().count(b"x-request-id: " + request_id.encode()) == 1

    # A later request's line comes after every line of this one.
    later = served.get("/fn", X_Request_Id=f"{request_id}-later")
    assert later.status_code == 200
    gateway = served["gateway"]
    eventually(lambda: f"{request_id}-later" in gateway.output(), "the later line")
    lines = [line for line in gateway.lines() if line.get("request_id") == request_id]
    assert [(line["event"], line["status"]) for line in lines] == [(event, status)]


def test_a_call_that_litestar_refuses_has_an_id(served: Site) -> None:
    answer = exchange(served.port, b"POST /fn/echo HTTP/1.1\r\nHost: a b\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: " in answer.lower()


def test_callers_that_offer_http_2_are_answered(served: Site) -> None:
    offer = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA",
    }
    assert served.call("echo", {"text": "a"}, **offer).json()["text"] == "a"


def test_the_gateway_goes_on_after_its_files_ran_out(served: Site) -> None:
    gateway = psutil.Process(served["gateway"].pid)
    soft, hard = gateway.rlimit(psutil.RLIMIT_NOFILE)
    served.client.close()
    served.client = httpx2.Client(base_url=served.url, timeout=10, trust_env=False)
    assert served.get("/fn").status_code == 200  # on a connection that stays
    lines = len(served["gateway"].output().splitlines())
    with contextlib.ExitStack() as opened:
        opened.callback(gateway.rlimit, psutil.RLIMIT_NOFILE, (soft, hard))
        gateway.rlimit(psutil.RLIMIT_NOFILE, (gateway.num_fds() + 3, hard))
        connections = [
            opened.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=10))
            for _ in range(50)
        ]
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        refused = 0
        for connection in connections:
            try:
                connection.sendall(request)
                refused += connection.recv(2**16) == b""
            except ConnectionError:
                refused += 1
        assert 40 < refused < 50
        assert served.get("/fn").status_code == 200
        for connection in connections:
            connection.close()

        # With the limit as it is, there is room again.
        def answers() -> bool:
            with contextlib.suppress(OSError):
                return b" 200 " in exchange(
                    served.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                )
            return False

        eventually(answers, "a new connection is answered")
    assert len(served["gateway"].output().splitlines()) - lines < 10
