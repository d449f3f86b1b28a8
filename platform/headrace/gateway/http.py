"""One client's connection: uvicorn's HTTP protocol, with bounds on what a client may cost.

Uvicorn reads a head of any length and waits for a slow client for ever, asks callers that offer HTTP/2 to
send their body again, and writes head and body of an answer one after the other; each write is a packet of
its own, which on small answers is a tenth of the whole call. It also reads the target anew at each request,
though a client's requests mostly have the same one.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.parse
from http import HTTPStatus
from typing import Any, ClassVar, Final, cast

import httptools
import msgspec
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.gateway.cycle import EXTENSIONS, Cycle
from headrace.gateway.requests import access
from headrace.ids import uuid7

PACED_UNTIL: Final = "headrace.paced_until"
"""Key of an ASGI scope: until then, by `time.monotonic()`, the client may take the answer at its own pace.

Whoever sets it sees to it that what waits for the client is bounded.
"""

_MOST_JOINED = 2**16  # more is written at once, or a long answer would pile up here unseen by flow control
_HOST: Final = re.compile(rb"(?:\[[\w.:~!$&'()*+,;=-]+\]|[\w.~!$&'()*+,;=%-]*)(?::\d*)?", re.ASCII)
_ONE_HOST = "A request has one header `Host`: a name or an address, and the port if that is another."
_HEAD, _BODY, _END = range(3)  # what the next byte belongs to; _END: nothing yet, a request is complete


class _Joined:
    """A transport that writes once an iteration of the event loop; in everything else the one it wraps."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing  # asked at each answer
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0
        self.written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write `data` at the end of this iteration, or now when it is much."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _MOST_JOINED:
            self._flush()

    def write_eof(self) -> None:
        """Write what is left, and no more after it."""
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Write what is left, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        self.written += self._size
        self._size = 0
        if parts:
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))


class Connection(HttpToolsProtocol):
    """`HttpToolsProtocol` with its writes joined, its heads bounded and its waits limited.

    A client that is too slow is noticed at the next look, up to `look_s` late; so a call costs no timer.
    """

    most_head: ClassVar = 2**16  # bytes of a head; also of anything else that brings no body nearer
    head_s: ClassVar = 15.0
    body_s: ClassVar = 30.0
    answer_s: ClassVar = 30.0
    least_rate: ClassVar = 2**16  # bytes a second that a longer body or answer has to move at
    look_s: ClassVar = 5.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        self._joined = _Joined(transport, self.loop)
        self._app: Any = cast("Any", self).app
        super().connection_made(cast("asyncio.Transport", self._joined))
        self._phase = _HEAD
        self._since = self._answer_since = self._answered_at = self.loop.time()
        self._unused = 0  # bytes received since the last whole head, piece of a body, or end of a request
        self._body_bytes = 0
        self._taken = 0  # bytes of answers that the client had taken at `_answer_since`
        self._is_refused = False
        self._host = b""  # the last one that was good: a connection mostly has only one
        self._target = b""  # the last one, and what it says
        self._target_read: tuple[str, bytes, bytes] = ("", b"", b"")
        self._running: Cycle | None = None  # `cycle` may be one that waits for it
        self._looking = self.loop.call_later(self.look_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._looking.cancel()
        super().connection_lost(exc)
        # Uvicorn tells the newest only.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if self._is_refused:
            return
        if self._phase == _END:
            self._phase, self._since = _HEAD, self.loop.time()
        self._unused += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST)
        if self._unused > self.most_head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _feed(self, data: bytes) -> None:
        rest: bytes | memoryview = data
        while True:  # as many in turn may offer another protocol as there is room for
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
                self._read_again()
            else:
                return

    def _read_again(self) -> None:
        """Read the head again as that of a request that offers no other protocol (RFC 9110, section 7.8).

        The parser takes everything behind such an offer for the other protocol's.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        head = [b"%b %b HTTP/%b" % (method, self.url, version)]
        head += [b"%b: %b" % pair for pair in self.headers if pair[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        if method == b"CONNECT":  # offers another protocol by itself
            raise httptools.HttpParserError("this is no proxy")
        self.parser.feed_data(b"\r\n".join([*head, b"\r\n"]))

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._hosts: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        name = name.lower()
        if name == b"host":
            self._hosts.append(value)
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._unused > self.most_head and self._head_size() > self.most_head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            raise httptools.HttpParserError("the head is too large")
        parser = self.parser
        if parser.should_upgrade():
            return
        version = parser.get_http_version()
        self._check_host(version)
        waits = self._owes_answer()
        self.cycle = cycle = self._cycle(parser.get_method().decode("ascii"), version)
        if waits:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self._app))
        else:
            self._start_asgi_task(cycle, self._app)
        if self._running is None or self._running.response_complete:
            self._running = cycle
        self.headers = []  # for trailers, which mustn't pass for headers (RFC 9110, section 6.5.1)
        self._phase, self._since = _BODY, self.loop.time()
        self._unused = self._body_bytes = 0

    def _cycle(self, method: str, version: str) -> Cycle:
        """What becomes of the request whose head is complete, with its ASGI scope."""
        if self.url != self._target:
            self._target_read, self._target = self._read_target(), self.url
        path, raw_path, query = self._target_read
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "headers": self.headers,
            "state": self.app_state.copy(),
            "method": method,
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "extensions": EXTENSIONS,
        }
        return Cycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            version != "1.0" and self.parser.should_keep_alive(),
            self.on_response_complete,
        )

    def _read_target(self) -> tuple[str, bytes, bytes]:
        """The path, as text and as it came, and the query, behind what a proxy has taken from the path."""
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        if "%" in path:
            path = urllib.parse.unquote(path)
        return self.root_path + path, self.root_path.encode("ascii") + url.path, url.query or b""

    def _check_host(self, version: str) -> None:
        """Refuse a request whose `Host` is double, malformed, or missing (RFC 9112, section 3.2)."""
        hosts = self._hosts
        if len(hosts) == 1:
            if hosts[0] == self._host:
                return
            if _HOST.fullmatch(hosts[0]):
                self._host = hosts[0]
                return
        elif not hosts and version == "1.0":
            return
        self._refuse(HTTPStatus.BAD_REQUEST, _ONE_HOST)
        raise httptools.HttpParserError("the host is missing, or wrong")

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._unused = 0
        self._body_bytes += len(body)
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self.parser.should_upgrade():
            return
        self._unused = 0
        self._phase, self._since = _END, self.loop.time()
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Called when an answer is whole."""
        if self.pipeline:
            self._running = cast("Cycle", self.pipeline[-1][0])  # it is started now
            super().on_response_complete()
            return
        # As uvicorn does it, but without a timer for each call: `_look` ends what isn't used any more.
        self._answered_at = self.loop.time()
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _refuse(self, status: HTTPStatus, detail: str = "") -> None:
        """Answer that what came is no request, and take nothing more; the client gets a while to read it.

        Args:
            status: the answer's.
            detail: what is wrong with it, where that is known.
        """
        if self._is_refused:
            return
        self._is_refused = True
        if self._owes_answer():  # to an earlier request, and the client would take this one for it
            self.transport.close()
            return
        request_id = uuid7()
        problem = {"title": status.phrase, "status": status, "request_id": request_id}
        if detail:
            problem["detail"] = detail
        body = msgspec.json.encode(problem)
        head = (
            f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        # Closing at once would reset the connection, and the answer with it, where more is on its way.
        self.transport.write_eof()
        access.info("request", request_id=request_id, method="", path="", status=status, total_ms=0)

    def _paced_until(self) -> float:
        scope: Any = {} if self._running is None else self._running.scope
        return scope.get(PACED_UNTIL, 0.0)

    def _owes_answer(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _look(self) -> None:
        """Let go of a client that is too slow."""
        now = self.loop.time()
        if self._is_refused or self._is_stuck(now):
            self.transport.abort()
            return
        self._looking = self.loop.call_later(self.look_s, self._look)
        is_owing = self._owes_answer()
        waited = now - self._since
        if self.flow.read_paused or (is_owing and self._phase == _HEAD):
            self._since = now  # it isn't the client who keeps the other waiting
        elif self._phase == _HEAD and waited > self.head_s:
            self.transport.close()
        elif self._phase == _BODY and waited > max(self.body_s, self._body_bytes / self.least_rate):
            if is_owing:
                self.cycle.message_event.set()  # its reader gets an empty piece that isn't the last
            else:
                self.transport.close()
        elif self._phase == _END and not is_owing and self._is_idle(now):
            self.transport.close()

    def _is_idle(self, now: float) -> bool:
        """Whether the client has kept a connection without a request for as long as it may."""
        return now - max(self._since, self._answered_at) > self.timeout_keep_alive

    def _is_stuck(self, now: float) -> bool:
        """Whether the client takes its answers too slowly."""
        left: int = self._joined.get_write_buffer_size()
        if left and self._owes_answer() and self._paced_until() > time.monotonic():
            self._answer_since, self._taken = now, self._joined.written - left
            return False
        if left and now - self._answer_since < self.answer_s:
            return False
        before, self._taken = self._taken, self._joined.written - left
        self._answer_since = now
        return left > 0 and self._taken - before < self.answer_s * self.least_rate
