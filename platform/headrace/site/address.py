"""The address that a site serves on."""

from __future__ import annotations

import asyncio
import errno
import socket

from headrace.errors import SetupError

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104 - compared with, not listened on


def base_url(host: str, port: int) -> str:
    """The URL at which this machine reaches a gateway that listens there."""
    host = _ANY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_free(host: str, port: int) -> None:
    """See that the gateway will be able to listen.

    Raises:
        SetupError: the port is taken or privileged, or the address isn't this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except socket.gaierror as error:
        raise SetupError(f"HEADRACE_HOST={host} can't be resolved: {error.strerror}") from None
    except OSError as error:
        raise SetupError(_explain(error, host, port)) from None


def free_port(host: str) -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


async def get_status(host: str, port: int, path: str) -> tuple[int, bytes]:
    """One small GET: status and body. A client library would cost more to load than all of this module.

    Raises:
        OSError: nobody answers there.
    """
    host = _ANY_ADDRESS.get(host, host)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    parts = head.split(b" ", 2)
    if len(parts) < 2 or not parts[1].isdigit():
        raise ConnectionError("no HTTP answer")
    return int(parts[1]), body


def _explain(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is taken: stop what listens there, or set HEADRACE_PORT"
        case errno.EACCES:
            return f"port {port} needs more rights than this user has: set HEADRACE_PORT to 1024 or more"
        case errno.EADDRNOTAVAIL:
            return f"HEADRACE_HOST={host} is no address of this machine"
        case _:
            return f"can't listen on {host}, port {port}: {error.strerror}"
