from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.link.address import Address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/headrace/runner.sock", Address(path="/run/headrace/runner.sock")),
        ("unix:/with space", Address(path="/with space")),
        ("tcp://runner-1.example:7000", Address(host="runner-1.example", port=7000)),
        ("tcp://10.0.0.7:0", Address(host="10.0.0.7", port=0)),
        ("tcp://127.0.0.1:65535", Address(host="127.0.0.1", port=65535)),
        ("tcp://[::1]:7000", Address(host="::1", port=7000)),
        ("tcp://[fd00::12:34]:1", Address(host="fd00::12:34", port=1)),
    ],
)
def test_addresses_are_read_and_written(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "tcp://", "tcp://:80", "tcp://host", "tcp://host:", "tcp://host:65536", "tcp://host:123456"),
        *("tcp://host:-1", "tcp://host:http", "tcp://host:80/", "tcp://::1:80", "tcp://[::1]", "tcp://[x]:1"),
        *("tcp://user@:80:90", "http://host:80", "host:80", "/run/socket", "unix:", "unix:relative"),
        *("tcp://a..b:80", "tcp://" + "a" * 64 + ".example:80", "TCP://host:80"),
    ],
)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Address.parse(text)
    assert repr(text) in str(caught.value)


def test_a_path_that_no_socket_can_have_is_refused() -> None:
    longest = "/" + "x" * 106
    assert Address.parse(f"unix:{longest}").path == longest
    with pytest.raises(SettingsError, match="at most 107 bytes"):
        Address.parse(f"unix:{longest}x")
    with pytest.raises(SettingsError, match="at most 107 bytes"):
        Address.parse("unix:/" + "ü" * 54)  # bytes, not characters


@given(st.text())
def test_any_text_is_an_address_or_a_wrong_setting(text: str) -> None:
    for candidate in (text, f"unix:{text}", f"tcp://{text}"):
        try:
            address = Address.parse(candidate)
        except SettingsError:
            continue
        assert Address.parse(str(address)) == address


class Peer(asyncio.Protocol):
    """One end of a connection."""

    transport: asyncio.Transport

    def __init__(self, accepted: list[Peer] | None = None) -> None:
        self.received = b""
        self._ended = asyncio.Event()
        if accepted is not None:
            accepted.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()

    async def ended(self) -> None:
        async with asyncio.timeout(10):
            await self._ended.wait()


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:0", "tcp://[::1]:0", "unix:"])
def test_what_listens_can_be_dialled_by_the_address_it_names(tmp_path: Path, text: str) -> None:
    if "::1" in text and not _has_ipv6():
        pytest.skip("this machine has no IPv6")

    async def scenario() -> None:
        wanted = Address.parse(f"unix:{tmp_path}/s" if text == "unix:" else text)
        accepted: list[Peer] = []
        server, actual = await wanted.listen(lambda: Peer(accepted))
        assert actual == Address.parse(str(actual))
        assert actual.path or actual.port > 0
        async with server:
            caller = await actual.connect(Peer)
            caller.transport.write(b"hello")
            caller.transport.close()
            await caller.ended()
            await accepted[0].ended()
            assert accepted[0].received == b"hello"

    asyncio.run(scenario())


def test_only_its_owner_may_connect_to_a_unix_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "s"
        server, _ = await Address(path=str(path)).listen(asyncio.Protocol)
        async with server:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    asyncio.run(scenario())


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "s"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        server, _ = await Address(path=str(path)).listen(Peer)
        async with server:
            caller = await Address(path=str(path)).connect(Peer)
            caller.transport.close()
            await caller.ended()

    asyncio.run(scenario())


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "precious"
        path.write_text("data")
        with pytest.raises(OSError, match="in use"):
            await Address(path=str(path)).listen(asyncio.Protocol)
        assert path.read_text() == "data"

    asyncio.run(scenario())


def test_a_socket_that_somebody_listens_on_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        address = Address(path=str(tmp_path / "s"))
        accepted: list[Peer] = []
        server, _ = await address.listen(lambda: Peer(accepted))
        async with server:
            with pytest.raises(OSError, match="in use"):
                await address.listen(asyncio.Protocol)
            caller = await address.connect(Peer)  # it still answers
            caller.transport.close()
            await caller.ended()
        for peer in accepted:
            await peer.ended()

    asyncio.run(scenario())


def test_a_port_in_use_is_an_os_error() -> None:
    async def scenario() -> None:
        server, actual = await Address(host="127.0.0.1").listen(asyncio.Protocol)
        async with server:
            with pytest.raises(OSError, match="in use"):
                await actual.listen(asyncio.Protocol)
        with pytest.raises(ConnectionRefusedError):
            await actual.connect(asyncio.Protocol)

    asyncio.run(scenario())


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
