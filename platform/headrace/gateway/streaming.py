"""Calls whose clients follow them: answers that are written while the function runs, as server-sent events.

Until the first event, the start of the execution, or `OPEN_S`, the answer may still be a problem with a
status of its own. From then on it is a stream, which ends with exactly one `result` or `error`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import MutableMapping
from typing import Any, Final

from headrace.gateway import sse
from headrace.gateway.asked import Asked, ToJob
from headrace.gateway.call_stream import CallStream
from headrace.gateway.calling import Caller
from headrace.gateway.exchange import CLIENT_LEFT, ClientLeft, Exchange
from headrace.gateway.http import PACED_UNTIL
from headrace.gateway.job_events import goes_on_after
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import to_problem
from headrace.link.frames import Result

log = logging.getLogger(__name__)

OPEN_S: Final = 10.0
"""Seconds after which a client is told that its call was taken, though it hasn't started yet."""

_PIECE: Final = 2**16  # bytes that are written at once: whoever writes more sees too late that nobody reads
_LAST: Final = frozenset({"result", "error"})


class StreamCalls:
    """Answers calls by streams.

    Args:
        caller: who gets them done.
        metrics: where streams are counted.
        public_url: what precedes `/problems/{code}` in a problem's type.
    """

    def __init__(self, caller: Caller, metrics: GatewayMetrics, public_url: str) -> None:
        self._caller = caller
        self._metrics = metrics
        self._public_url = public_url

    async def answer(
        self, exchange: Exchange, asked: Asked, stream: CallStream, scope: MutableMapping[str, Any]
    ) -> ToJob | None:
        """Write what the call says until its end, at the client's pace while it runs.

        Args:
            exchange: the request, which is answered.
            asked: the call.
            stream: what is said of it.
            scope: the request's, in which its connection is told of the pace.

        Returns:
            How the call is to go on as a job, where nothing was written yet and no runner had room for it.

        Raises:
            Problem: what became of the call, where nothing was written yet; or it is to go on after an event,
                as no stream of this kind can.
            ClientLeft: the client is gone and the work was stopped.
        """
        goes_on_after(exchange, idempotency_key=None)
        writer = _Writer(exchange, asked, stream)
        writing = asyncio.create_task(writer.write())
        end = "cut-off"
        scope[PACED_UNTIL] = time.monotonic() + asked.span.hold
        try:
            try:
                result = await self._caller.answer(asked)
                if isinstance(result, ToJob) and not writer.is_open:
                    end = ""
                    return result
            except ClientLeft:
                end = CLIENT_LEFT
                raise
            except Exception as error:
                problem = to_problem(error)
                end = problem.code
                if not writer.is_open and not stream.items:
                    raise
                if problem.code == "internal-error":
                    log.error("stream broke, request %s", exchange.request_id, exc_info=error)
                exchange.code = problem.code
                stream.end("error", problem.body(self._public_url, exchange.request_id))
            else:
                assert isinstance(result, Result)  # once it is open the call becomes no job
                end = "result"
                stream.end("result", result.output)
            finally:
                scope[PACED_UNTIL] = 0.0  # no slot bounds any more how many such streams there are
            await writing
        finally:
            writing.cancel()
            if end:
                exchange.items = writer.items
                self._metrics.stream_ended(exchange.function, end, writer.items, writer.first_item_s)
        return None


class _Writer:
    """Writes one stream, as fast as its client reads.

    Args:
        exchange: whose answer it is.
        asked: the call; once its answer is begun, it can't be that of a job any more.
        stream: what there is to write.
    """

    def __init__(self, exchange: Exchange, asked: Asked, stream: CallStream) -> None:
        self.is_open = False
        self.items = 0
        self.first_item_s: float | None = None
        self._exchange = exchange
        self._asked = asked
        self._stream = stream
        self._events = 0
        self._began = time.perf_counter()

    async def write(self) -> None:
        """Write events as they come, up to the last one."""
        stream, exchange = self._stream, self._exchange
        is_last = False
        while not is_last:
            has_news = await stream.news(sse.HEARTBEAT_S if self.is_open else OPEN_S)
            if not self.is_open:
                self.is_open = True
                self._asked.may_be_job = False
                await exchange.begin(*sse.HEADERS)
            elif not has_news:
                await exchange.write(sse.HEARTBEAT)
            while not is_last and (piece := self._piece()):
                body, taken, is_last = piece
                await exchange.write(body, more=not is_last)
                stream.taken(taken)

    def _piece(self) -> tuple[bytes, int, bool] | None:
        """The events that are written next, their credits, and whether they are the last ones."""
        frames: list[bytes] = []
        size = taken = 0
        while size < _PIECE and (event := self._stream.next()) is not None:
            self._events += 1
            frames.append(sse.frame(event.kind, self._events, event.data))
            size += len(frames[-1])
            taken += event.credit
            if event.kind == "item":
                self._count_item()
            elif event.kind in _LAST:
                return b"".join(frames), taken, True
        return (b"".join(frames), taken, False) if frames else None

    def _count_item(self) -> None:
        self.items += 1
        if self.first_item_s is None:
            self.first_item_s = time.perf_counter() - self._began
