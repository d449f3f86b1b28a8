"""`POST /fn/{name}`: the hot path, as plain ASGI beside Litestar.

A Litestar handler with a typed body costs twice as much for each call, and reads the body before it knows
the function's limit.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from headrace.admission import Job, Refused, Span, Sync, Wish, decide, span
from headrace.domain import Manifest
from headrace.gateway import explaining, foretold, preferences, strict_json
from headrace.gateway.asked import Asked, Handed, Record, ToJob
from headrace.gateway.auth import Authenticator, require_call, require_priority
from headrace.gateway.becoming import weight_of
from headrace.gateway.call_line import CallLine
from headrace.gateway.call_stream import CallStream
from headrace.gateway.calling import Caller
from headrace.gateway.cycle import WHOLE
from headrace.gateway.directory import Directory, ServedFunction
from headrace.gateway.exchange import CLIENT_LEFT, ClientLeft, Exchange, wanted_headers
from headrace.gateway.job_asked import JobCall
from headrace.gateway.job_call import JobCalls
from headrace.gateway.job_events import CUT_OFF
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.preferences import Wishes
from headrace.gateway.problems import Problem, to_problem
from headrace.gateway.quotas import Quotas
from headrace.gateway.refusals import not_taken
from headrace.gateway.routing import Routing
from headrace.gateway.streaming import StreamCalls
from headrace.ids import uuid7
from headrace.keys import KeyRow
from headrace.link.frames import Result
from headrace.settings import Settings
from headrace.telemetry import logs

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

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
        routing: which way a call goes.
        metrics: where calls are counted.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Directory,
        authenticator: Authenticator,
        quotas: Quotas,
        caller: Caller,
        jobs: JobCalls,
        routing: Routing,
        metrics: GatewayMetrics,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._authenticator = authenticator
        self._quotas = quotas
        self._caller = caller
        self._streams = StreamCalls(caller, metrics, settings.public_url)
        self._jobs = jobs
        self._routing = routing
        self._metrics = metrics
        self._in_flight = 0
        metrics.in_flight.set_function(lambda: self._in_flight)
        self._log: Callable[[CallLine], None] = logs.write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call, count it, and write its access line; its function's name is a path parameter."""
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
            WHOLE in request.get("extensions", ()),
        )
        self._in_flight += 1
        try:
            if query := request.get("query_string"):
                exchange.explains = explaining.is_asked_for(query)
            course = await self._accept(exchange, request["path_params"]["name"])
            job = await self._call(exchange, course, request) if isinstance(course, Asked) else course
            if job is not None:
                await (self._follow if exchange.wants_events else self._jobs.answer)(exchange, job)
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

    async def _call(self, exchange: Exchange, asked: Asked, scope: Any) -> JobCall | None:
        """Answer on the direct path; returns the job that the call has to become instead, to be answered."""
        if asked.stream is None:
            end = await self._caller.answer(asked)
        else:
            end = await self._streams.answer(exchange, asked, asked.stream, scope)
        if isinstance(end, Result):
            await exchange.answer_result(end.output, end.queue_ms, end.exec_ms)
        elif isinstance(end, Handed):
            await self._jobs.handed(exchange, asked, end.job_id)
        elif end is not None:
            return self._given_up(exchange, asked, end)
        return None

    async def _follow(self, exchange: Exchange, call: JobCall) -> None:
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

    async def _accept(self, exchange: Exchange, name: str) -> Asked | JobCall | None:
        """Authenticate, authorise, read and check: everything before a runner or the ledger hears of it.

        Returns:
            The call as it goes on; None where it was answered, as it only was to be explained.
        """
        headers = exchange.headers
        if self._routing.database_away() > self._settings.outage_grace:
            raise Problem("database-unavailable")
        authorization = headers.get(b"authorization")
        key = self._authenticator.known(authorization) or await self._authenticator.owner(authorization)
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
        gate = self._directory.gate
        if gate.is_shut(name):
            await gate.require_or_known(name, key.owner_id, wishes.idempotency_key)
        body = await exchange.read_body(manifest.limits.input)
        value = strict_json.decode(body)
        function.check(value, len(body))
        if gate.is_shut(name):
            await gate.require_or_known(name, key.owner_id, wishes.idempotency_key)
        exchange.accepted_at = time.monotonic()
        prefer = wishes.prefer
        if prefer.wait is not None:
            exchange.applied = b"wait=%d" % prefer.wait
        is_job = (prefer.respond_async and wishes.takes_job) or wishes.idempotency_key is not None
        if is_job and not exchange.explains:
            job = self._jobs.prepare(exchange, manifest, (body, value), key, wishes)
            if wishes.idempotency_key is None:  # else it may have been executed long ago
                self._routing.require_time(manifest, job.new.total_s, job.new.cost)
            exchange.course = job
            return job
        asked = self._asked(exchange, function, (body, value), key, wishes)
        if exchange.explains:
            wish = Wish(prefer.respond_async, wishes.idempotency_key is not None, wishes.takes_job)
            exchange.metrics = self._metrics.no_function  # it is no demand for the function
            await exchange.answer(200, self._routing.explain(manifest, asked.span, wish, asked.cost))
            return None
        exchange.course, exchange.cost = asked, asked.cost
        return self._routed(exchange, asked)

    def _asked(
        self,
        exchange: Exchange,
        function: ServedFunction,
        content: tuple[bytes, Any],
        key: KeyRow,
        wishes: Wishes,
    ) -> Asked:
        """The call for the direct path, with what is needed to make a job of it."""
        manifest = function.manifest
        body, value = content
        cost = function.cost_of(value)
        return Asked(
            exchange.job_id,
            manifest,
            body,
            key.owner_id,
            exchange.request_id,
            preferences.trace_of(exchange.headers),
            self._span(manifest, wishes, streams=exchange.wants_events),
            exchange.receive,
            CallStream() if exchange.wants_events else None,
            cost if function.tells_cost else 0.0,
            may_be_job=wishes.takes_job,
            record=Record(
                key.key_id,
                cost,
                weight_of(wishes, key),
                min(manifest.budget.queue, wishes.deadline or math.inf),
                wishes.place,
            ),
            most_outstanding=key.most_outstanding,
        )

    def _span(self, manifest: Manifest, wishes: Wishes, *, streams: bool) -> Span:
        """How long the call may take, and its connection be held."""
        prefer, max_hold = wishes.prefer, self._settings.max_hold
        found = span(
            manifest.budget, wait=prefer.wait, deadline=wishes.deadline, max_hold=max_hold, streams=streams
        )
        if prefer.respond_async and wishes.takes_job:
            return Span(min(prefer.wait or 0, max_hold), found.total)
        return found

    def _routed(self, exchange: Exchange, asked: Asked) -> Asked | JobCall:
        """The call on the direct path, or the job that it is to be at once.

        Raises:
            Problem: `no-runner`, `function-degraded` or `busy`: there is no way for it; or
                `deadline-unreachable`.
        """
        wish = Wish(takes_job=asked.may_be_job)
        snapshot = self._routing.snapshot(asked.manifest, asked.cost)
        match decide(asked.span, wish, snapshot):
            case Sync():
                asked.predicted = snapshot.predicted
                asked.clear_s, asked.jobs = snapshot.clear_s, snapshot.jobs
                return asked
            case Refused() as refused:
                raise not_taken(refused, asked)
            case Job(hold, reason):
                self._routing.require_time(asked.manifest, asked.span.total, asked.cost)
                exchange.course = job = self._jobs.become(asked, 0.0, hold, reason)
                return job

    def _given_up(self, exchange: Exchange, asked: Asked, end: ToJob) -> JobCall:
        """The job that a call has to become that no runner could answer directly.

        Where runners were full it is known only now how long the wait is: it may be over the hold.
        """
        elapsed = time.monotonic() - exchange.accepted_at
        hold = max(0.0, asked.span.hold - elapsed)
        if end.reason == "full":
            left = Span(hold, asked.span.total - elapsed)
            decision = self._routing.decide(asked.manifest, left, Wish(), asked.cost)
            hold = decision.hold if isinstance(decision, Job) else hold
        exchange.course = job = self._jobs.become(asked, elapsed, hold, end)
        return job

    def _record(self, exchange: Exchange, seconds: float) -> None:
        exchange.metrics.count(
            exchange.status,
            seconds,
            exchange.code,
            exchange.cost,
            is_job=exchange.follows_job,
            was_job=isinstance(exchange.course, JobCall),
        )
        course = exchange.course
        more: dict[str, Any] = foretold.settle(exchange, self._settings.brief_wait)
        if exchange.items is not None:
            more["items"] = exchange.items
        line = CallLine(
            logs.now(),
            "info",
            "call",
            exchange.request_id,
            course.job_id if course else "",
            exchange.function,
            exchange.owner,
            exchange.status,
            exchange.code,
            course.attempt if course else 0,
            exchange.bytes_in,
            round(course.queue_ms, 3) if course else 0,
            round(course.exec_ms, 3) if course else 0,
            round(seconds * 1000, 3),
            **more,
        )
        self._log(line)
