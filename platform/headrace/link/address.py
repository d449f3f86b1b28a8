"""Where a runner listens: `tcp://host:port` or `unix:/path`."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from headrace.errors import SettingsError

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|[^:/\[\]]+):(?P<port>\d{1,5})")
_UNIX_PATH_BYTES = 107  # sockaddr_un.sun_path, less its final zero

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)


@dataclass(frozen=True, slots=True)
class Address:
    """A runner's address; `path` for a Unix socket, else `host` and `port`.

    A TCP port of 0 asks the system for a free one.
    """

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address.

        Raises:
            SettingsError: it is neither `tcp://host:port` nor `unix:/path`.
        """
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/"):
                raise SettingsError(f"{text!r}: a unix: address needs an absolute path")
            if len(path.encode()) > _UNIX_PATH_BYTES:
                raise SettingsError(f"{text!r}: a Unix socket's path has at most {_UNIX_PATH_BYTES} bytes")
            return cls(path=path)
        match = _TCP.fullmatch(text)
        if match is None or int(match["port"]) > 65535 or not _is_host(match["host"]):
            raise SettingsError(f"{text!r} is not an address: write tcp://host:port or unix:/path")
        return cls(host=match["host"].strip("[]"), port=int(match["port"]))

    async def connect(self, factory: Callable[[], ProtocolT]) -> ProtocolT:
        """Dial the address.

        Raises:
            OSError: nobody answers there.
        """
        loop = asyncio.get_running_loop()
        if self.path:
            _, protocol = await loop.create_unix_connection(factory, self.path)
        else:
            _, protocol = await loop.create_connection(factory, self.host, self.port)
        return protocol

    async def listen(self, factory: Callable[[], asyncio.Protocol]) -> tuple[asyncio.Server, Address]:
        """Listen on the address; returns the server and the address with the actual port.

        A Unix socket left behind by a dead process is replaced (by the event loop, which leaves other files
        alone), and only its owner may connect.

        Raises:
            OSError: the address can't be used.
        """
        loop = asyncio.get_running_loop()
        if self.path:
            if _is_answered(self.path):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), self.path)
            server = await loop.create_unix_server(factory, self.path)
            Path(self.path).chmod(0o600)
            return server, self
        server = await loop.create_server(factory, self.host, self.port)
        port = server.sockets[0].getsockname()[1]
        return server, Address(host=self.host, port=port)


def _is_host(name: str) -> bool:
    """Whether it could be looked up at all: no label is empty or too long."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def _is_answered(path: str) -> bool:
    """Whether somebody listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its backlog is full
        except OSError:
            return False
    return True
