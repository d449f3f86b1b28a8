"""Without the link secret nobody gets calls, and nobody gets calls executed."""

from __future__ import annotations

import contextlib
import secrets
import socket
import uuid
from collections.abc import Iterator

import msgspec
import pytest
from harness import postgres
from harness.postgres import Clones
from harness.site import Site, eventually, site

from headrace.link.frames import VERSION, Call, Frame, Hello, Service, decode
from headrace.link.handshake import proof
from headrace.link.stream import pack


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url) as running:
        yield running


class Peer:
    """The other end of a link, in the hands of somebody who can say anything."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        self._connection = connection

    def say(self, frame: object) -> None:
        with contextlib.suppress(OSError):  # hung up on: `hear` tells
            self._connection.sendall(pack(frame))

    def hear(self) -> Frame | None:
        """The next frame; None when the other side has hung up."""
        with contextlib.suppress(ConnectionResetError):
            if prefix := self._connection.recv(4, socket.MSG_WAITALL):
                return decode(self._connection.recv(int.from_bytes(prefix, "big"), socket.MSG_WAITALL))
        return None


def interface_of(served: Site) -> str:
    return served.get("/fn/echo").json()["interface"]


def echo_call(served: Site) -> Call:
    job_id, body = str(uuid.uuid4()), b'{"text": "a"}'
    return Call(job_id, "echo", interface_of(served), body, str(uuid.uuid4()), 1, 10_000, 10_000)


@contextlib.contextmanager
def dialled(served: Site) -> Iterator[tuple[Peer, Hello]]:
    """A connection to the runner's socket, which says its HELLO first."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"{served.folder}/runner-0.sock")
        peer = Peer(connection)
        hello = peer.hear()
        assert isinstance(hello, Hello)
        assert (hello.services, hello.proof) == ((), b"")  # it tells a stranger nothing
        yield peer, hello


def executions(served: Site) -> float:
    return served.metric(
        served["runner-0"], "headrace_runner_executions_total", function="echo", outcome="succeeded"
    )


@pytest.mark.parametrize("case", ["no proof", "a wrong secret", "the runner's own nonce", "a call at once"])
def test_a_runner_hangs_up_on_who_does_not_know_the_secret(served: Site, case: str) -> None:
    before = executions(served)
    with dialled(served) as (peer, hello):
        nonce = hello.nonce if case == "the runner's own nonce" else secrets.token_bytes(32)
        guess = proof(secrets.token_bytes(32), "gateway", hello.nonce, nonce)
        if case != "a call at once":
            peer.say(Hello(VERSION, nonce, b"" if case == "no proof" else guess))
        peer.say(echo_call(served))
        assert peer.hear() is None

    eventually(
        lambda: served["runner-0"].said("a connection to the link was refused"), "the runner's log says so"
    )
    assert executions(served) == before
    assert served.call("echo", {"text": "a"}).status_code == 200


def test_a_runner_does_not_wait_for_who_says_nothing(served: Site) -> None:
    with dialled(served) as (peer, _):
        assert peer.hear() is None


def test_a_runner_hangs_up_on_what_is_no_frame(served: Site) -> None:
    with dialled(served) as (peer, _):
        peer.say("GET / HTTP/1.1")
        assert peer.hear() is None
    assert served.call("echo", {"text": "a"}).status_code == 200


def test_a_runner_does_not_hold_much_for_who_has_not_proved_himself(served: Site) -> None:
    with dialled(served) as (peer, _):
        peer.say(Hello(VERSION, b"x" * 2**21))
        assert peer.hear() is None


def test_a_gateway_sends_nothing_to_a_runner_that_does_not_know_the_secret(served: Site) -> None:
    """A row in the registry is all that a rogue runner has."""
    services = (Service("echo", interface_of(served), 1000),)
    with socket.create_server(("127.0.0.1", 0)) as listening, registered(served, listening) as runner_id:
        listening.settimeout(10)
        connection, _ = listening.accept()
        with connection:
            peer, nonce = Peer(connection), secrets.token_bytes(32)
            peer.say(Hello(VERSION, nonce))
            greeting = peer.hear()
            assert isinstance(greeting, Hello)
            guess = proof(secrets.token_bytes(32), "runner", greeting.nonce, nonce)
            peer.say(Hello(VERSION, nonce, guess, runner_id, services))
            assert peer.hear() is None

        (line,) = eventually(lambda: served["gateway"].lines(f"runner {runner_id}"), "its log says so")
        assert "doesn't know the link secret" in line["event"]
        assert served.runners_of("echo") == 1
        assert served.call("echo", {"text": "a"}).status_code == 200


@contextlib.contextmanager
def registered(served: Site, listening: socket.socket) -> Iterator[str]:
    """A row as a runner writes it, by somebody who can write to the table."""
    runner_id = str(uuid.uuid4())
    postgres.query(
        served.database_url,
        "SELECT register_runner_v3(%s::uuid, %s, 'default', '{}', %s::jsonb, NULL, '{}', '{}', '{}', '{}')",
        runner_id,
        f"tcp://127.0.0.1:{listening.getsockname()[1]}",
        msgspec.json.encode({"echo": interface_of(served)}).decode(),
    )
    try:
        yield runner_id
    finally:
        postgres.query(served.database_url, "SELECT unregister_runner_v2(%s::uuid)", runner_id)


NOSY = """
import os
from headrace import function

@function()
def nosy(input: str) -> list[str]:
    processes = ["self", str(os.getppid())]
    environments = [open(f"/proc/{process}/environ").read() for process in processes]
    return [name for name in ("HEADRACE_DATABASE_URL", "HEADRACE_FUNCTIONS") if name in "".join(environments)]
"""


def test_functions_are_not_given_the_way_to_the_secret(clones: Clones) -> None:
    """Neither an executor nor the fork server that made it has the database's address in its environment."""
    with clones.migrated() as url, site(url, runners=0) as careful:
        careful.write_module("nosy", NOSY)
        careful.start_runner(HEADRACE_FUNCTIONS="nosy")
        careful.wait_ready()
        assert careful.call("nosy", "?").json() == ["HEADRACE_FUNCTIONS"]
