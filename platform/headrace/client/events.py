"""A job's events, read over as many connections as it takes: as such, or as the answer to its call."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import httpx2

from headrace.client.errors import CallRefused, ClientError, Unreachable
from headrace.client.streams import CONNECT_S, SILENCE_S

TERMINAL: Final = frozenset({"result", "error"})
"""A job has exactly one of these events, its last."""

PATIENCE_S: Final = 60.0
"""How long a lost connection may take to come back."""

_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol)
PASSING: Final = frozenset({429, 502, 503, 504})
"""Statuses of what may be over in a moment."""


class Event(NamedTuple):
    """One event: its kind, its id, and what it says."""

    kind: str
    event_id: str
    data: Any


class Follower:
    """Reads the events of one job up to the terminal one.

    Args:
        http: the client to ask with.
        path: of the job's events.
        last_event_id: only what came after the event of this id.
        refused: makes the error of an answer.
        lost: makes the error of a connection.
        on_outage: told once of an outage that is waited for: a connection that can't be made, or a refusal.
        call: what each connection asks with, where they are the answer to a call with an idempotency key;
            `path` is the function's then. What refuses the call at first is its answer, and isn't waited for.
    """

    def __init__(
        self,
        http: httpx2.Client,
        path: str,
        last_event_id: str | None,
        refused: Callable[[httpx2.Response], CallRefused],
        lost: Callable[[Exception], Unreachable],
        on_outage: Callable[[ClientError], None] | None = None,
        call: Mapping[str, Any] | None = None,
    ) -> None:
        self.job_id = ""
        """Whose they are, as the first answer has said."""
        self._http = http
        self._call = call
        self._path = path
        self._last_event_id = last_event_id
        self._refused = refused
        self._lost = lost
        self._on_outage = on_outage
        self._is_out = False
        self._opened_at: float | None = None
        self._deadline = 0.0
        self._pause = _PAUSE_S
        self._came_about = False
        self._is_over = False

    def __iter__(self) -> Iterator[Event]:
        """Yield events; each connection goes on where the one before ended.

        Raises:
            CallRefused: the answer is a problem that doesn't pass in time.
            Unreachable: the first connection fails, or a lost one doesn't come back.
        """
        self._renew()
        while True:
            self._opened_at = None
            try:
                for event in self._connection():
                    self._renew()
                    yield event
                    if event.kind in TERMINAL:
                        return
                if self._is_over:
                    return
                error: ClientError = self._lost(EOFError("the events ended before the job did"))
            except (httpx2.SSEError, ValueError):
                url = str(self._http.base_url).rstrip("/")
                raise Unreachable(f"the server at {url} is not a Headrace gateway (no events)") from None
            except httpx2.TransportError as failure:
                error = self._lost(failure)
                # The call may have been accepted, so what is said next isn't the answer to a new one.
                self._came_about |= self._call is not None and not isinstance(failure, _NEVER_SENT)
            except CallRefused as refusal:
                error = refusal
            self._wait_after(error)

    def _connection(self) -> Iterator[Event]:
        call = {} if self._call is None else dict(self._call)
        headers = {**call.pop("headers", {}), "Accept": "text/event-stream"}
        if self._last_event_id is not None:
            headers["Last-Event-ID"] = self._last_event_id
        limits = httpx2.Timeout(CONNECT_S, read=SILENCE_S)
        method = "GET" if self._call is None else "POST"
        with self._http.stream(method, self._path, headers=headers, timeout=limits, **call) as response:
            if response.status_code == 204:  # nothing came after the event of that id
                self._is_over = True
                return
            if response.status_code != 200:
                response.read()
                raise self._refused(response)
            self._opened_at = time.monotonic()
            self._came_about = True
            self.job_id = response.headers.get("Headrace-Job-Id", self.job_id)
            for event in httpx2.EventSource(response):
                self._last_event_id = event.id or self._last_event_id
                if event.data:  # a mere `retry` or `id` says nothing
                    yield Event(event.event, event.id, event.json())

    def _renew(self) -> None:
        self._deadline, self._pause, self._is_out = time.monotonic() + PATIENCE_S, _PAUSE_S, False

    def _wait_after(self, error: ClientError) -> None:
        """Wait before the next connection, or raise the error when there is to be none."""
        # A server that hangs up at once doesn't count as one that came back.
        if self._opened_at is not None and time.monotonic() - self._opened_at > _LONGEST_PAUSE_S:
            self._renew()
        wait = self._pause * random.uniform(0.5, 1)  # noqa: S311 - not all followers at once
        passing = self._came_about
        if isinstance(error, CallRefused):
            wait = max(wait, error.retry_after or 0)
            passing = error.status in PASSING and (self._came_about or self._call is None)
        if not passing or time.monotonic() + wait > self._deadline:
            raise error
        if self._opened_at is None and not self._is_out and self._on_outage is not None:
            self._is_out = True
            self._on_outage(error)
        time.sleep(wait)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
