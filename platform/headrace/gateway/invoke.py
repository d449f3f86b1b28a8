"""`POST /fn/{name}`: the hot path, as plain ASGI inside Litestar's routing.

A Litestar handler with a typed body costs twice as much for each call, and reads the body before it knows
the function's limit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import structlog

from headrace.admission import span
from headrace.gateway import preferences, strict_json
from headrace.gateway.auth import Authenticator
from headrace.gateway.calling import Asked, Caller, ClientLeft
from headrace.gateway.directory import Directory
from headrace.gateway.metrics import FunctionMetrics, GatewayMetrics
from headrace.gateway.problems import Problem, to_problem
from headrace.ids import uuid7
from headrace.link.frames import Result
from headrace.settings import Settings

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

_CLIENT_LEFT = 499  # nginx's number for it; nobody gets it
_WANTED = frozenset(
    {
        b"accept",
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"headrace-deadline",
        b"idempotency-key",
        b"prefer",
        b"traceparent",
        b"x-request-id",
    }
)


@dataclass(slots=True)
class Exchange:
    """One request and what became of it."""

    headers: dict[bytes, bytes]
    job_id: str
    request_id: str
    receive: Receive
    send: Send
    metrics: FunctionMetrics
    asked: Asked | None = None
    function: str = ""
    owner: str = ""
    bytes_in: int = 0
    applied: bytes = b""
    status: int = 0
    code: str = ""


class Invoke:
    """Answers calls; nothing is called behind it.

    Args:
        settings: the gateway's.
        directory: what can be called.
        authenticator: who may.
        caller: who gets it done.
        metrics: where calls are counted.
        database_away: seconds since Postgres last answered.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Directory,
        authenticator: Authenticator,
        caller: Caller,
        metrics: GatewayMetrics,
        database_away: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._authenticator = authenticator
        self._caller = caller
        self._metrics = metrics
        self._database_away = database_away
        self._in_flight = 0
        metrics.in_flight.set_function(lambda: self._in_flight)
        self._access: Any = structlog.get_logger().bind()  # bound once, not at each call

    def __call__(self, app: ASGIApp) -> ASGIApp:
        """Litestar asks for what stands in front of the route's handler; nothing gets past it."""
        return self._handle

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call, count it, and write its access line."""
        began = time.perf_counter()
        headers = _headers(cast("Any", scope)["headers"])
        job_id = uuid7()
        given = headers.get(b"x-request-id")
        exchange = Exchange(
            headers,
            job_id,
            job_id if given is None else preferences.request_id(given),
            receive,
            send,
            self._metrics.no_function,
        )
        self._in_flight += 1
        try:
            asked = await self._accept(exchange, cast("Any", scope)["path_params"]["name"])
            await _send_result(exchange, await self._caller.answer(asked))
        except ClientLeft:
            exchange.status, exchange.code = _CLIENT_LEFT, "client-left"
        except Exception as error:
            await self._send_problem(exchange, error)
        finally:
            self._in_flight -= 1
        self._record(exchange, time.perf_counter() - began)

    async def _accept(self, exchange: Exchange, name: str) -> Asked:
        """Authenticate, authorise, read and check: everything before a runner hears of it."""
        headers = exchange.headers
        if self._database_away() > self._settings.outage_grace:
            raise Problem("database-unavailable")
        owner = await self._authenticator.owner(headers.get(b"authorization"))
        exchange.owner = owner.owner_id
        function = self._directory.find(name)
        manifest = function.manifest
        exchange.function, exchange.metrics = name, function.metrics
        preferences.check_accept(headers.get(b"accept"))
        preferences.check_content_type(headers.get(b"content-type"))
        preferences.check_content_encoding(headers.get(b"content-encoding"))
        prefer = preferences.prefer(headers.get(b"prefer"))
        deadline = preferences.deadline(headers.get(b"headrace-deadline"))
        if b"idempotency-key" in headers:
            raise Problem("idempotency-not-supported")
        body = await _read_body(exchange, manifest.limits.input)
        function.check(strict_json.decode(body), len(body))
        if prefer.wait is not None:
            exchange.applied = b"wait=%d" % prefer.wait
        exchange.asked = Asked(
            exchange.job_id,
            manifest,
            body,
            owner.owner_id,
            exchange.request_id,
            headers.get(b"traceparent", b"").decode("latin-1"),
            span(manifest.budget, wait=prefer.wait, deadline=deadline, max_hold=self._settings.max_hold),
            exchange.receive,
        )
        return exchange.asked

    async def _send_problem(self, exchange: Exchange, error: Exception) -> None:
        problem = to_problem(error)
        if problem.code == "internal-error":
            log.error("call broke, request %s", exchange.request_id, exc_info=error)
        exchange.code = problem.code
        exchange.status, headers, body = problem.asgi(self._settings.public_url, exchange.request_id)
        await _send(exchange, headers, body)

    def _record(self, exchange: Exchange, seconds: float) -> None:
        exchange.metrics.count(exchange.status, seconds)
        asked = exchange.asked
        self._access.info(
            "call",
            request_id=exchange.request_id,
            job_id=asked.job_id if asked else "",
            function=exchange.function,
            owner=exchange.owner,
            status=exchange.status,
            code=exchange.code,
            attempt=asked.attempt if asked else 0,
            bytes_in=exchange.bytes_in,
            queue_ms=round(asked.queue_ms, 3) if asked else 0,
            exec_ms=round(asked.exec_ms, 3) if asked else 0,
            total_ms=round(seconds * 1000, 3),
        )


def _headers(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers that matter; lines of one name are joined (RFC 9110, section 5.3)."""
    found: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name in _WANTED:
            found[name] = found[name] + b", " + value if name in found else value
    return found


async def _read_body(exchange: Exchange, limit: int) -> bytes:
    """The whole body, refused as soon as it is known to be over the limit or to come too slowly."""
    declared = exchange.headers.get(b"content-length")
    if declared is not None and int(declared) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    while True:
        message: Any = await exchange.receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunks.append(message.get("body", b""))
        exchange.bytes_in += len(chunks[-1])
        if exchange.bytes_in > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if not chunks[-1]:  # `Connection` says so: the rest has been too long in coming
            raise Problem("request-timeout", headers={"Connection": "close"})


def _too_large(limit: int) -> Problem:
    # The rest of the body isn't read, so the connection can't be used again.
    return Problem(
        "payload-too-large",
        f"The body is over the function's limit of {limit} bytes.",
        headers={"Connection": "close"},
        limit=limit,
    )


async def _send_result(exchange: Exchange, result: Result) -> None:
    exchange.status = 200
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(result.output)),
        (b"x-request-id", exchange.request_id.encode("ascii")),
        (b"server-timing", b"queue;dur=%.3f, exec;dur=%.3f" % (result.queue_ms, result.exec_ms)),
    ]
    if exchange.applied:
        headers.append((b"preference-applied", exchange.applied))
    await _send(exchange, headers, result.output)


async def _send(exchange: Exchange, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    send: Any = exchange.send
    await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
