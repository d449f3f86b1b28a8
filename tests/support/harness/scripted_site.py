"""An HTTP server that answers as a test's script says, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """One answer; a part that is an event holds up the rest until it is set."""

    status: int = 200
    parts: Sequence[bytes | threading.Event] = ()
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False


def document(value: Any, status: int = 200, **headers: str) -> Answer:
    """A whole answer in JSON; underscores in the names of headers are hyphens."""
    body = json.dumps(value).encode()
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(status, [body], {"Content-Length": str(len(body)), **named})


def event(kind: str, number: int | None, data: Any) -> bytes:
    """A server-sent event."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def stream(*parts: bytes | threading.Event, is_cut: bool = False) -> Answer:
    """Server-sent events; `is_cut`: the connection breaks after the last one instead of ending."""
    headers = {"Content-Type": "text/event-stream"}
    return Answer(200, parts, {**headers, "Content-Length": "100000"} if is_cut else headers, is_cut)


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: Message
    body: bytes


class ScriptedSite:
    """Its address, the answers that are left by method and path, and the requests so far.

    Several answers are given one after the other, the last one again and again.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[Asked] = []

    def on(self, request: str, *answers: Answer) -> None:
        """Answer `GET /path` so; the query counts where it is given."""
        self.answers[request] = list(answers)

    def requests(self, start: str) -> list[Asked]:
        return [one for one in self.asked if f"{one.method} {one.path}".startswith(start)]

    def next_answer(self, method: str, path: str) -> Answer:
        left = self.answers.get(f"{method} {path}") or self.answers.get(f"{method} {path.partition('?')[0]}")
        if not left:
            return document({"code": "not-found", "title": "Nothing is here"}, 404)
        return left.pop(0) if len(left) > 1 else left[0]


@contextmanager
def scripted_site() -> Iterator[ScriptedSite]:
    """A server that runs meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            site.asked.append(Asked(self.command, self.path, self.headers, body))
            answer = site.next_answer(self.command, self.path)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for part in answer.parts:
                if isinstance(part, threading.Event):
                    part.wait(20)
                else:
                    self.wfile.write(part)
                    self.wfile.flush()

        do_GET = do_POST = _answer  # noqa: N815 - the names are the library's

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = ScriptedSite(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield site
        server.shutdown()
        thread.join()
