"""`POST /fn/{name}`: the hot path, as plain ASGI inside Litestar's routing.

A Litestar handler with a typed body costs twice as much for each call, and reads the body before it knows
the function's limit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import structlog

from headrace.admission import span
from headrace.gateway import preferences, strict_json
from headrace.gateway.auth import Authenticator, require_call, require_priority
from headrace.gateway.call_stream import CallStream
from headrace.gateway.calling import Asked, Caller
from headrace.gateway.directory import Directory
from headrace.gateway.exchange import CLIENT_LEFT, ClientLeft, Exchange, server_timing, wanted_headers
from headrace.gateway.job_call import JobCall, JobCalls
from headrace.gateway.job_events import CUT_OFF
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import Problem, to_problem
from headrace.gateway.quotas import Quotas
from headrace.gateway.streaming import StreamCalls
from headrace.ids import uuid7
from headrace.settings import Settings

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

_CLIENT_LEFT_STATUS = 499  # nginx's number for it; nobody gets it


class Invoke:
    """Answers calls; nothing is called behind it.

    Args:
        settings: the gateway's.
        directory: what can be called.
        authenticator: who may.
        quotas: how often.
        caller: who gets it done.
        jobs: who takes what is to be a job.
        metrics: where calls are counted.
        database_away: seconds since Postgres last answered.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Directory,
        authenticator: Authenticator,
        quotas: Quotas,
        caller: Caller,
        jobs: JobCalls,
        metrics: GatewayMetrics,
        database_away: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._authenticator = authenticator
        self._quotas = quotas
        self._caller = caller
        self._streams = StreamCalls(caller, metrics, settings.public_url)
        self._jobs = jobs
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
        request = cast("Any", scope)
        headers = wanted_headers(request["headers"])
        job_id = uuid7()
        given = headers.get(b"x-request-id")
        exchange = Exchange(
            headers,
            job_id,
            job_id if given is None else preferences.request_id(given),
            receive,
            send,
            self._metrics.no_function,
            request.get("root_path", ""),
        )
        self._in_flight += 1
        try:
            asked = await self._accept(exchange, request["path_params"]["name"])
            if exchange.wants_events:
                await self._follow(exchange, asked, request)
            elif isinstance(asked, JobCall):
                await self._jobs.answer(exchange, asked)
            else:
                result = await self._caller.answer(asked)
                await exchange.answer(200, result.output, server_timing(result.queue_ms, result.exec_ms))
        except ClientLeft:
            exchange.status, exchange.code = _CLIENT_LEFT_STATUS, CLIENT_LEFT
        except Exception as error:
            problem = to_problem(error)
            if problem.code == "internal-error":
                log.error("call broke, request %s", exchange.request_id, exc_info=error)
            await exchange.refuse(problem, self._settings.public_url)
        finally:
            self._in_flight -= 1
        self._record(exchange, time.perf_counter() - began)

    async def _follow(self, exchange: Exchange, asked: Asked | JobCall, scope: Any) -> None:
        """Answer by a stream of events."""
        if isinstance(asked, JobCall):
            await self._follow_job(exchange, asked)
        elif asked.stream is not None:
            await self._streams.answer(exchange, asked, asked.stream, scope)

    async def _follow_job(self, exchange: Exchange, call: JobCall) -> None:
        """Answer by the events of its job, which goes on without its client."""
        end = CUT_OFF
        try:
            end = await self._jobs.stream(exchange, call)
        except Exception as error:
            end = to_problem(error).code
            raise
        finally:
            self._metrics.stream_ended(exchange.function, end, exchange.items or 0)
        if end == CLIENT_LEFT:
            raise ClientLeft
        exchange.code = "" if end in ("result", CUT_OFF) else end

    async def _accept(self, exchange: Exchange, name: str) -> Asked | JobCall:
        """Authenticate, authorise, read and check: everything before a runner or the ledger hears of it."""
        headers = exchange.headers
        if self._database_away() > self._settings.outage_grace:
            raise Problem("database-unavailable")
        key = await self._authenticator.owner(headers.get(b"authorization"))
        exchange.owner = key.owner_id
        require_call(key, name)
        function = self._directory.find(name)
        manifest = function.manifest
        exchange.function, exchange.metrics = name, function.metrics
        if key.rate is not None:
            exchange.quota = self._quotas.take(key)
        exchange.wants_events = preferences.wants_events(headers.get(b"accept"))
        preferences.check_content_type(headers.get(b"content-type"))
        preferences.check_content_encoding(headers.get(b"content-encoding"))
        wishes = preferences.wishes(headers)
        if wishes.priority is not None:
            require_priority(key, wishes.priority)
        body = await exchange.read_body(manifest.limits.input)
        value = strict_json.decode(body)
        function.check(value, len(body))
        prefer = wishes.prefer
        if prefer.wait is not None:
            exchange.applied = b"wait=%d" % prefer.wait
        if prefer.respond_async or wishes.idempotency_key is not None:
            exchange.course = job = self._jobs.prepare(exchange, manifest, (body, value), key, wishes)
            return job
        exchange.course = asked = Asked(
            exchange.job_id,
            manifest,
            body,
            key.owner_id,
            exchange.request_id,
            headers.get(b"traceparent", b"").decode("latin-1"),
            span(
                manifest.budget,
                wait=prefer.wait,
                deadline=wishes.deadline,
                max_hold=self._settings.max_hold,
                streams=exchange.wants_events,
            ),
            exchange.receive,
            CallStream() if exchange.wants_events else None,
            0.0 if manifest.batch is None else manifest.cost.of(value),
        )
        exchange.cost = asked.cost
        return asked

    def _record(self, exchange: Exchange, seconds: float) -> None:
        exchange.metrics.count(
            exchange.status, seconds, exchange.code, exchange.cost, is_job=exchange.follows_job
        )
        course = exchange.course
        items = {} if exchange.items is None else {"items": exchange.items}
        self._access.info(
            "call",
            request_id=exchange.request_id,
            job_id=course.job_id if course else "",
            function=exchange.function,
            owner=exchange.owner,
            status=exchange.status,
            code=exchange.code,
            attempt=course.attempt if course else 0,
            bytes_in=exchange.bytes_in,
            queue_ms=round(course.queue_ms, 3) if course else 0,
            exec_ms=round(course.exec_ms, 3) if course else 0,
            total_ms=round(seconds * 1000, 3),
            **items,
        )
