"""A connection to a remote server: kept for the next call, trusted, and closed however a call ends."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from harness.openai_server import OpenAIServer
from harness.site import eventually
from harness.upstream_calls import SAY, call_for, failure, said, with_upstream

from headrace import PermanentError, TransientError
from headrace.errors import CallStopped
from headrace.upstream import Upstream

# ---------------------------------------------------------------------- kept


def test_a_connection_is_used_again(remote):
    async def twice(server: Upstream) -> None:
        for _ in range(3):
            await server.chat(call_for(), SAY)

    with_upstream(remote, twice)
    assert (len(remote.requests), remote.connections) == (3, 1)


@contextlib.asynccontextmanager
async def closing_after(answers: int, options: ssl.SSLContext | None = None):
    """A server that takes one request more on each connection than it answers, and closes it."""
    body = b'{"data": [{"index": 0, "embedding": [1.0]}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    taken: list[int] = []  # requests of each connection
    serving: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(cast("asyncio.Task[Any]", asyncio.current_task()))
        taken.append(0)
        mine = len(taken) - 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while taken[mine] <= answers:
                asked = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", asked.lower())
                await reader.readexactly(int(length[1]))
                taken[mine] += 1
                if taken[mine] <= answers:
                    writer.write(head + body)
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=options)
    async with listening:
        scheme = "http" if options is None else "https"
        yield f"{scheme}://localhost:{listening.sockets[0].getsockname()[1]}/v1", taken
        await asyncio.gather(*serving)


def test_a_kept_connection_that_the_server_closes_costs_nothing():
    async def ask() -> list[int]:
        async with closing_after(1) as (url, taken):
            server = Upstream(url, retries=0)
            for _ in range(3):
                assert await server.embeddings(call_for(), ["a"]) == [[1.0]]
            await server.aclose()
            return taken

    assert asyncio.run(ask()) == [2, 2, 1]  # the second is asked in vain, and at once again


def test_a_new_connection_that_the_server_closes_is_a_failure():
    async def ask() -> list[int]:
        async with closing_after(0) as (url, taken):
            server = Upstream(url)
            with pytest.raises(TransientError, match="broke off"):
                await server.embeddings(call_for(), ["a"])
            await server.aclose()
            return taken

    assert asyncio.run(ask()) == [1]


# ---------------------------------------------------------------------- the end of the connection


def left(remote: OpenAIServer) -> int:
    """After how many pieces the client left."""
    eventually(lambda: remote.requests and remote.requests[-1].ended, "the server notices")
    assert remote.requests[-1].ended == "left"
    return remote.requests[-1].pieces


@pytest.mark.parametrize("content", ["endless", "silent", "mute"])
def test_a_cancelled_body_closes_its_connection(remote, content):
    async def cancelled(server: Upstream) -> None:
        task = asyncio.create_task(server.chat(call_for(), said(content)))
        while not (remote.requests and (content != "endless" or remote.requests[0].pieces > 2)):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(left, remote)  # while the client lives, and this loop

    with_upstream(remote, cancelled)


@pytest.mark.parametrize("content", ["endless", "silent", "mute"])
def test_its_deadline_ends_a_call_and_its_connection(remote, content):
    async def late(server: Upstream) -> None:
        with pytest.raises(CallStopped):
            await server.chat(call_for(0.2), said(content))
        await asyncio.to_thread(left, remote)

    with_upstream(remote, late)


def test_a_stopped_call_ends_at_the_next_piece(remote):
    async def stopped(server: Upstream) -> None:
        call = call_for()
        pieces = server.stream(call, said("endless"))
        await anext(pieces)
        call.stop()
        with pytest.raises(CallStopped) as caught:
            await anext(pieces)
        await asyncio.to_thread(left, remote)
        assert caught.tb is not None  # kept until here, as by a log: nothing is closed by being collected

    with_upstream(remote, stopped)


def test_a_stream_that_is_left_half_way_is_closed(remote):
    async def broken_off(server: Upstream) -> None:
        async for piece in server.stream(call_for(), said("endless")):
            if piece.text:
                break
        await asyncio.to_thread(left, remote)

    with_upstream(remote, broken_off)


def test_a_body_that_is_ended_where_it_yields_closes_its_connection(remote):
    """As when its reader takes nothing, and leaves."""

    async def ended(server: Upstream) -> None:
        async def body():
            async for piece in server.stream(call_for(), said("endless")):
                yield piece.text

        texts = body()
        assert await anext(texts) == "endless"
        await texts.aclose()
        await asyncio.to_thread(left, remote)

    with_upstream(remote, ended)


# ---------------------------------------------------------------------- certificates


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A file with a certificate of `localhost`, which has signed itself, and its key."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    command += ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    subprocess.run(command, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key").read_text() + (folder / "certificate").read_text())
    return both


@pytest.mark.parametrize("kind", ["file", "context", "nothing"])
def test_an_authority_of_ones_own_is_trusted_where_it_is_named(certificate, monkeypatch, kind):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # not looked at
    context = ssl.create_default_context(cafile=certificate)
    ca = {"file": certificate, "context": context, "nothing": None}[kind]

    async def ask() -> list[list[float]]:
        options = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        options.load_cert_chain(certificate)
        async with closing_after(1, options) as (url, _):
            server = Upstream(url, ca=ca)
            try:
                return await server.embeddings(call_for(), ["a"])
            finally:
                await server.aclose()  # the server's end of the connection is closed by that

    if ca is not None:
        assert asyncio.run(ask()) == [[1.0]]
        return
    with pytest.raises(PermanentError, match=r"certificate isn't trusted: self.signed"):
        asyncio.run(ask())


def test_a_file_that_holds_no_certificates_is_said(remote, tmp_path):
    (tmp_path / "empty.pem").write_text("")
    for name in ("empty.pem", "missing.pem"):
        assert "certificates in ca" in str(failure(remote, PermanentError, ca=tmp_path / name))
