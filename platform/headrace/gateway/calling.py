"""A call from admission to its last answer: choosing a runner, waiting, starting again after a loss."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from headrace import pools
from headrace.admission import Span, most_room, retry_after
from headrace.domain import Manifest
from headrace.gateway.call_stream import WINDOW, CallStream
from headrace.gateway.exchange import ClientLeft
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.pending import PendingCall
from headrace.gateway.problem_kinds import KINDS
from headrace.gateway.problems import Problem
from headrace.gateway.runners import RunnerLinks, Serving
from headrace.link.frames import Answer, Call, Error, Lost, Refused, Result

Receive = Callable[[], Awaitable[Any]]

_MOST_UNCHARGED = 3  # starts lost through no fault of the call
_WATCH_AFTER_S = 0.1  # a shorter call isn't worth a task that waits for its client to leave
_BACKOFF_S = 0.1
_EXECUTED = (Result, Error)


@dataclass(slots=True)
class Asked:
    """One call as the gateway accepted it.

    Args:
        manifest: the function's.
        input: the body, already checked.
        job_id: its name on every link.
        span: the time it gets.
        receive: the ASGI connection's, to see the client leave.
        stream: takes the call's items and its progress; None where nobody follows it.
        cost: the input's, where runners are to know it.
        alone: a start ended with its process: nothing may run beside the next one.
    """

    job_id: str
    manifest: Manifest
    input: bytes
    owner_id: str
    request_id: str
    traceparent: str
    span: Span
    receive: Receive
    stream: CallStream | None = None
    cost: float = 0.0
    attempt: int = 1
    charged: int = 0
    uncharged: int = 0
    was_lost: bool = False
    alone: bool = False
    queue_ms: float = 0.0
    exec_ms: float = 0.0
    refusals: dict[Serving, Refused] = field(default_factory=dict[Serving, Refused])

    @property
    def has_items(self) -> bool:
        """Whether the client may have got some of the output: then no other start can go on with it."""
        return self.stream is not None and self.stream.items > 0

    def note(self, answer: Answer) -> None:
        """Keep what the last start tells of its times."""
        if isinstance(answer, _EXECUTED):
            self.queue_ms, self.exec_ms = answer.queue_ms, answer.exec_ms

    def note_left(self) -> None:
        """Keep for how long a start has run that nobody waits for any more, where its stream tells."""
        if self.stream is not None and self.stream.began_at:
            self.exec_ms = (time.monotonic() - self.stream.began_at) * 1000


class Caller:
    """Gets calls answered by the runners.

    Args:
        links: to the runners.
        metrics: where restarts are counted.
    """

    def __init__(self, links: RunnerLinks, metrics: GatewayMetrics) -> None:
        self._links = links
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()

    async def answer(self, asked: Asked) -> Result:
        """The function's output.

        Raises:
            Problem: whatever else became of the call.
            ClientLeft: the client is gone and the work was stopped.
        """
        accepted_at = self._loop.time()
        while True:
            elapsed = self._loop.time() - accepted_at
            serving = self._choose(asked)
            if serving is None:
                if asked.attempt == 1 or not await self._room(asked, asked.span.hold - elapsed):
                    raise self._no_room(asked)
                continue
            pending = _send(serving, asked, elapsed)
            try:
                answer = await self._wait(pending, asked, accepted_at)
            except BaseException:
                serving.link.stop(asked.job_id)
                asked.note_left()
                raise
            asked.note(answer)
            if isinstance(answer, Result):
                return answer
            match answer:
                case Refused():
                    asked.refusals[serving] = answer
                case Lost():
                    asked.was_lost = True
                    asked.alone = asked.alone or answer.suspect
                    self._charge(asked, charged=answer.charged)
                case Error(retryable=True) if (
                    asked.charged + 1 < asked.manifest.attempts and not asked.has_items
                ):
                    asked.alone = False  # its process lived to tell
                    self._charge(asked, charged=True)
                    await asyncio.sleep(_BACKOFF_S * random.uniform(0.5, 1.5))  # noqa: S311
                case Error():
                    raise _failed(answer, asked)

    def _choose(self, asked: Asked) -> Serving | None:
        manifest = asked.manifest
        candidates = self._links.serving(manifest.name, manifest.interface, asked.refusals)
        if len(candidates) == 1:
            return candidates[0]
        sound = [serving for serving in candidates if not serving.degraded]
        flowing = [serving for serving in sound if not serving.link.is_congested]
        return most_room(flowing or sound or candidates)

    async def _room(self, asked: Asked, seconds: float) -> bool:
        """Wait until a call that has to start again may be taken; False when the time is up.

        That is when a link comes or goes, or when the first of those that refused said that it has room.
        """
        soonest = min((refusal.retry_after_s for refusal in asked.refusals.values()), default=seconds)
        pause = min(seconds, max(soonest, _BACKOFF_S))
        asked.refusals.clear()
        return await self._links.next_change(pause) or pause < seconds

    async def _wait(self, pending: PendingCall, asked: Asked, accepted_at: float) -> Answer:
        """The answer; at the end of the hold, or when the client leaves, an exception."""
        ends_at = accepted_at + asked.span.hold
        answer = await pending.wait(min(_WATCH_AFTER_S, ends_at - self._loop.time()))
        if answer is not None:
            return answer
        leaving = asyncio.ensure_future(asked.receive())
        leaving.add_done_callback(lambda _: pending.wake())
        try:
            answer = await pending.wait(ends_at - self._loop.time())
            if answer is not None:
                return answer
            if leaving.done():
                raise ClientLeft
            raise _out_of_time(asked)
        finally:
            leaving.cancel()

    def _charge(self, asked: Asked, *, charged: bool) -> None:
        """Count a lost start; returns when the call may start again.

        Raises:
            Problem: `worker-lost`, no start is left.
        """
        if charged:
            asked.charged += 1
        else:
            asked.uncharged += 1
        is_over = asked.charged >= asked.manifest.attempts or asked.uncharged > _MOST_UNCHARGED
        if is_over or asked.has_items:
            raise _worker_lost(asked)
        asked.attempt += 1
        asked.refusals.clear()
        self._metrics.retries.inc()

    def _no_room(self, asked: Asked) -> Problem:
        if asked.was_lost:
            return _worker_lost(asked)
        return _refused(asked)


def _send(serving: Serving, asked: Asked, elapsed: float) -> PendingCall:
    if elapsed >= asked.span.hold:
        raise _out_of_time(asked)  # nobody would wait for what it makes
    return serving.link.call(_frame(asked, elapsed), asked.stream)


def _frame(asked: Asked, elapsed: float) -> Call:
    manifest = asked.manifest
    return Call(
        asked.job_id,
        manifest.name,
        manifest.interface,
        asked.input,
        asked.owner_id,
        asked.attempt,
        int((asked.span.total - elapsed) * 1000),
        int((asked.span.hold - elapsed) * 1000),
        asked.request_id,
        asked.traceparent,
        alone=asked.alone,
        cost=asked.cost,
        credit=0 if asked.stream is None else WINDOW,
    )


def _out_of_time(asked: Asked) -> Problem:
    if asked.span.hold >= asked.span.total:
        return Problem("deadline-exceeded", f"The call was not finished within its {asked.span.total:g} s.")
    return Problem(
        "hold-exceeded",
        f"The call was not finished within the {asked.span.hold:g} s for which its connection may be held.",
    )


def _worker_lost(asked: Asked) -> Problem:
    starts = asked.charged + asked.uncharged
    if asked.has_items:
        detail = "The stream was cut off, as the process that ran the call ended"
        detail += "; a stream isn't started again after its first item."
        return Problem("worker-lost", detail, attempt=starts)
    when = "its only start" if starts == 1 else f"each of its {starts} starts"
    detail = f"The process that ran the call ended unexpectedly at {when}."
    if asked.attempt > starts:
        detail += " No runner could start it again in time."
    return Problem("worker-lost", detail, attempt=starts)


def _failed(error: Error, asked: Asked) -> Problem:
    if error.category == "invalid-input":
        errors = [{"path": path, "message": message} for path, message in error.errors]
        return Problem("invalid-input", error.message, errors=errors)
    if error.retryable:
        return Problem("attempts-exhausted", error.message, attempt=asked.attempt)
    code = error.category if error.category in KINDS else "function-failed"
    return Problem(code, error.message, attempt=asked.attempt)


def _refused(asked: Asked) -> Problem:
    """The problem for a call that every runner refused: of several reasons the one that ends first."""
    if not asked.refusals:
        whose = f"{_whose(asked)} that serves {asked.manifest.name}"
        return Problem("no-runner", f"No runner{whose} is connected.")
    refusal = min(asked.refusals.values(), key=lambda refusal: refusal.retry_after_s)
    headers = {"Retry-After": str(retry_after(refusal.retry_after_s))}
    match refusal.reason:
        case "full":
            return Problem("busy", headers=headers)
        case "cold":
            return Problem("busy", "The function's process is starting.", headers=headers)
        case "degraded":
            return Problem("function-degraded", headers=headers)
        case _:
            return Problem(
                "no-runner", f"The runner of {asked.manifest.name} takes no calls.", headers=headers
            )


def _whose(asked: Asked) -> str:
    """Which runners serve the function, where not all do by default."""
    pool = asked.manifest.pool
    if pool == pools.DEFAULT:
        return ""
    return f" with labels {pool}" if "=" in pool else f" of pool {pool}"
