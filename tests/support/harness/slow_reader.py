"""A client that reads a stream at its own pace, and what that costs the site."""

from __future__ import annotations

import json
import socket

import psutil

from harness.site import Site


class SlowReader:
    """A client with small buffers, which reads when it is told to."""

    def __init__(self, site: Site, name: str, input: object, *, ahead: bool = False, **headers: str) -> None:
        """`ahead`: another request follows before the first is answered."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        self._socket.settimeout(30)
        self._socket.connect(("127.0.0.1", site.port))
        body = json.dumps(input).encode()
        head = {
            "Host": "site",
            "Accept": "text/event-stream",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **site.headers(**headers),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        self._socket.sendall(f"POST /fn/{name} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        if ahead:
            self._socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: site\r\n\r\n")

    def read(self, size: int) -> bytes:
        """So many bytes, or what there is up to the end."""
        parts: list[bytes] = []
        while size > 0 and (part := self._socket.recv(min(size, 2**16))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._socket.close()


def memory_of(site: Site) -> list[int]:
    """Resident bytes of the gateway, and of the runner with all that belongs to it."""
    runner = site["runner-0"]
    processes = [psutil.Process(runner.pid), *runner.descendants()]
    gateway = psutil.Process(site["gateway"].pid).memory_info().rss
    return [gateway, sum(process.memory_info().rss for process in processes)]
