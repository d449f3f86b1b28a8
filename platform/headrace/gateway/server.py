"""A gateway process: from its settings to its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
from types import FrameType

import uvicorn
import uvloop

from headrace.errors import SetupError
from headrace.gateway.app import Gateway
from headrace.gateway.http import Connection
from headrace.settings import Settings
from headrace.startup import open_database
from headrace.telemetry import logs

log = logging.getLogger(__name__)

_STOP_S = 10
KEEP_ALIVE_S = 75  # longer than a proxy's, or it would send a call into a connection that is closing
_MOST_FILES = 2**16


def serve(settings: Settings) -> None:
    """Serve HTTP until SIGTERM or SIGINT, then finish what is in flight.

    Raises:
        SetupError: the port is taken, or Postgres can't be had.
        SettingsError: a setting is wrong in a way that only Postgres or the system can tell.
    """
    logs.configure()
    allow_files()
    with bind(settings.host, settings.port) as listening:
        uvloop.run(_serve(settings, listening))


async def _serve(settings: Settings, listening: socket.socket) -> None:
    database = await open_database(
        settings.database_url, application_name="headrace-gateway", patience_s=settings.start_patience
    )
    async with database:
        logs.join_lines(asyncio.get_running_loop())
        gateway = Gateway(settings, database)
        await gateway.start()
        config = uvicorn.Config(
            gateway.app,
            interface="asgi3",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            # Uvicorn handles both, and raises them again when it is done: then they have had their effect.
            signal.signal(number, _ignored)
        gc.collect()
        gc.freeze()  # what lives as long as the process needn't be looked at again and again
        host, port = listening.getsockname()[:2]
        log.info("serving on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        server = _Server(config, gateway)
        broken = asyncio.create_task(gateway.broken())
        broken.add_done_callback(lambda _: setattr(server, "should_exit", True))
        try:
            await server.serve(sockets=[listening])
            if broken.done():
                await broken
        finally:
            broken.cancel()
            await gateway.stop()
            logs.flush()


class _Server(uvicorn.Server):
    """Uvicorn's, which waits for open answers before it ends; those that wait for jobs could take long."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn."""
        self._gateway.drain()
        await super().shutdown(sockets)


def _ignored(_number: int, _frame: FrameType | None) -> None:
    """Nothing is left to do."""


def allow_files() -> None:
    """Let this process have as many connections at once as the system allows, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def bind(host: str, port: int) -> socket.socket:
    """A socket that will listen on the address.

    Raises:
        SetupError: it is taken or isn't this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)  # the server listens later: until Postgres is there, callers are refused
    except OSError as error:
        raise SetupError(
            f"can't listen on {host} port {port} ({error.strerror}): "
            "choose others by HEADRACE_HOST and HEADRACE_PORT"
        ) from error
    return listening
