"""One request and its answer on a client's connection."""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

WHOLE: Final = "headrace.response.whole"
"""An extension of ASGI: name in a scope's `extensions`, and `type` of a message that is a whole answer.

Its other members are `status`, `headers` (lines, each with its end, without `Content-Length` and
`Connection`) and `body`. Uvicorn looks through each header of other answers, and writes it by itself; whoever
sends this one sees to it that its headers hold nothing that nobody has looked at. It is no answer to HEAD.
"""

EXTENSIONS: Final[dict[str, dict[str, Any]]] = {WHOLE: {}}


_SMALL: Final = 2**14  # to copy so much costs less than to write it by itself


class Cycle(RequestResponseCycle):
    """Uvicorn's, which also sends `WHOLE` answers, and hands out a body that is there without a wait."""

    async def receive(self) -> Any:
        """ASGI's; waits until there is more of the body, or its end, or the client is gone."""
        is_there = bool(self.body) and not self.more_body
        if not is_there or self.waiting_for_100_continue or self.disconnected or self.response_complete:
            return await super().receive()
        self.flow.resume_reading()
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Any) -> None:
        """ASGI's; waits until the client takes more."""
        if message["type"] != WHOLE:
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if not self.disconnected:
            self._answer(message["status"], message["headers"], message["body"])

    def _answer(self, status: int, headers: bytes, body: bytes) -> None:
        if self.response_started:
            raise RuntimeError("a whole answer to a request that has one")
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        defaults = b"".join([b"%b: %b\r\n" % pair for pair in self.default_headers])
        head = b"%b%b%bcontent-length: %d\r\n%b" % (STATUS_LINE[status], defaults, headers, len(body), end)
        if len(body) <= _SMALL:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
