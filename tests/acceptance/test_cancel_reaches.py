"""Whatever ends a call reaches its running body the same way, and soon: a cancel, a client that leaves, the
caller's deadline, the soft limit; for direct calls and for jobs.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, answered, eventually, site
from stopped_functions import SOFT_S

WITHIN_S = 1.0
"""From what ends a call to the end of its body."""
DEADLINE_S = 0.5
PATIENCE_S = 5.0
"""From a stop to the kill of a process that has loaded no model, if the stop is of no avail."""
_TRIES = 3  # the machine may stall; the best counts

FREE_WITHIN_S = 5.0
"""From the end of the body to a slot that is free."""

MAIN = ("checks", "sleeps", "naps", "computes", "reads", "waits")
BODIES = [
    *(("runs", how) for how in ("checks", "sleeps", "computes")),
    *(("runs_in_pool", how) for how in ("checks", "naps", "computes")),
    ("runs_async", "sleeps"),
]
ONE_OF_EACH = [("runs", "sleeps"), ("runs_in_pool", "naps"), ("runs_async", "sleeps")]
"""Of each kind of thread."""


class Slow:
    """A server that begins to answer, says nothing more, and notes when its client has gone."""

    def __init__(self) -> None:
        self.left_at: list[float] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._serve)

    @contextlib.contextmanager
    def serving(self) -> Iterator[Slow]:
        self._thread.start()
        try:
            yield self
        finally:
            self._listening.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client:
                client.recv(65_536)
                client.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\none\n"
                )
                with contextlib.suppress(ConnectionResetError):
                    client.recv(1)
                self.left_at.append(time.monotonic())


@dataclass
class Body:
    """A call whose body notes what happens to it."""

    served: Site
    function: str
    how: str
    path: Path
    url: str = ""

    @property
    def input(self) -> dict[str, str]:
        return {"how": self.how, "path": str(self.path), "url": self.url}

    def notes(self) -> list[tuple[str, float]]:
        if not self.path.exists():
            return []
        lines = [line.split() for line in self.path.read_text().splitlines(keepends=True) if line[-1] == "\n"]
        return [(what, float(at)) for what, at in lines]

    def started_at(self) -> float:
        return eventually(lambda: self.notes()[:1], "the body runs")[0][1]

    def ended(self) -> tuple[str, float]:
        """By what the body ended, and when."""
        return eventually(lambda: self.notes()[1:2], "the body has ended")[0]


@pytest.fixture(scope="module")
def mixed(clones: Clones) -> Iterator[Site]:
    """Its executor reads in a thread: there are asynchronous functions."""
    with clones.migrated() as url, site(url, functions="stopped_functions") as running:
        yield running


@pytest.fixture(scope="module")
def alone(clones: Clones) -> Iterator[Site]:
    """Its executor has one thread, which runs the bodies, and reads between two of them."""
    with clones.migrated() as url, site(url, runners=0) as running:
        running.write_module("alone", "from stopped_functions import runs, runs_soon")
        running.start_runner("runner-0", HEADRACE_FUNCTIONS="alone")
        eventually(lambda: running.get("/fn/runs").status_code == 200, "it is registered")
        running.wait_ready()
        yield running


# ---------------------------------------------------------------------- what ends a call; each returns when


def cancel(body: Body) -> float:
    job_id = body.served.submit(body.function, body.input)
    body.started_at()
    at = time.monotonic()
    assert body.served.post(f"/jobs/{job_id}/cancel", b"").status_code in {200, 202}
    job = body.served.final(job_id)
    assert (job["status"], job["error"]["category"]) == ("cancelled", "job-cancelled")
    return at


def leave(body: Body) -> float:
    request_id, content = str(uuid.uuid4()), json.dumps(body.input).encode()
    head = (
        f"POST /fn/{body.function} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {body.served.key}\r\n"
        f"X-Request-Id: {request_id}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", body.served.port), timeout=10) as connection:
        connection.sendall(head.encode() + content)
        body.started_at()
        at = time.monotonic()
    line = eventually(lambda: body.served.access_lines(request_id), "the access line")[0]
    assert (line["status"], line["code"]) == (499, "client-left")
    return at


def let_deadline_pass(body: Body) -> float:
    at = time.monotonic() + DEADLINE_S
    response = body.served.call(body.function, body.input, Headrace_Deadline=str(DEADLINE_S))
    problem(response, 504, "deadline-exceeded")
    return at


def let_jobs_deadline_pass(body: Body) -> float:
    at = time.monotonic() + DEADLINE_S
    job_id = body.served.submit(body.function, body.input, Headrace_Deadline=str(DEADLINE_S))
    job = body.served.final(job_id)
    assert (job["status"], job["error"]["category"]) == ("failed", "deadline-exceeded")
    return at


def let_soft_limit_pass(body: Body) -> float:
    response = body.served.call(f"{body.function}_soon", body.input)
    problem(response, 504, "soft-limit-exceeded")
    return body.started_at() + SOFT_S


def let_jobs_soft_limit_pass(body: Body) -> float:
    job_id = body.served.submit(f"{body.function}_soon", body.input)
    job = body.served.final(job_id)
    assert (job["status"], job["error"]["category"]) == ("failed", "soft-limit-exceeded")
    return body.started_at() + SOFT_S


OTHER_ENDS = [
    leave,
    let_deadline_pass,
    let_jobs_deadline_pass,
    let_soft_limit_pass,
    let_jobs_soft_limit_pass,
]
End = Callable[[Body], float]

# ---------------------------------------------------------------------- what comes of it


@pytest.mark.parametrize(("function", "how"), BODIES)
def test_a_cancel_reaches_a_body_whatever_it_does(
    mixed: Site, tmp_path: Path, function: str, how: str
) -> None:
    reaches(mixed, tmp_path, function, how, cancel)


@pytest.mark.parametrize("how", MAIN)
def test_it_reaches_a_body_beside_which_nothing_reads(alone: Site, tmp_path: Path, how: str) -> None:
    reaches(alone, tmp_path, "runs", how, cancel)


@pytest.mark.parametrize("end", OTHER_ENDS)
@pytest.mark.parametrize(("function", "how"), ONE_OF_EACH)
def test_so_does_whatever_else_ends_a_call(
    mixed: Site, tmp_path: Path, function: str, how: str, end: End
) -> None:
    reaches(mixed, tmp_path, function, how, end)


@pytest.mark.parametrize("end", OTHER_ENDS)
def test_so_it_does_where_nothing_reads(alone: Site, tmp_path: Path, end: End) -> None:
    reaches(alone, tmp_path, "runs", "reads", end)


def reaches(served: Site, folder: Path, function: str, how: str, end: End) -> None:
    """The body has ended soon, its slot is free, and the same process answers the next call."""
    process = served.call(function, {}).json()
    took_s: list[float] = []
    while not took_s or (min(took_s) > WITHIN_S and len(took_s) < _TRIES):
        body = Body(served, function, how, folder / str(len(took_s)))
        at = end(body)
        by, ended_at = body.ended()
        # What an asynchronous body sees is what asyncio raises in it.
        assert by == ("CancelledError" if function == "runs_async" else "CallStopped")
        took_s.append(ended_at - at)
        response = served.call(function, {})
        assert (response.status_code, response.json()) == (200, process)
        assert len(body.notes()) == 2

    assert min(took_s) <= WITHIN_S
    eventually(lambda: running_calls(served) == 0, "no slot is taken", within=FREE_WITHIN_S)


def running_calls(served: Site) -> float:
    """In all slots that the test's functions have."""
    groups = ("(main)", "runs_in_pool", "runs_in_pool_soon", "runs_async", "runs_async_soon")
    runner = served["runner-0"]
    return sum(served.metric(runner, "headrace_runner_running_calls", slots=group) for group in groups)


@pytest.mark.parametrize(
    ("function", "end"),
    [("runs", cancel), ("runs", leave), ("runs_async", cancel), ("runs_async", let_deadline_pass)],
)
def test_the_stream_of_a_remote_server_is_closed(
    mixed: Site, tmp_path: Path, function: str, end: End
) -> None:
    """So that an inference server, which goes on as long as somebody listens, stops too."""
    took_s: list[float] = []
    while not took_s or (min(took_s) > WITHIN_S and len(took_s) < _TRIES):
        with Slow().serving() as server:
            at = end(Body(mixed, function, "streams", tmp_path / str(len(took_s)), server.url))
            (left_at,) = eventually(lambda: server.left_at, "the server's client has gone")
        took_s.append(left_at - at)

    assert min(took_s) <= WITHIN_S


def test_a_body_that_nothing_reaches_is_killed(mixed: Site, tmp_path: Path) -> None:
    """In a thread of a pool, Python interrupts no wait in C: the process is ended after a while."""
    before = mixed.call("runs_in_pool", {}).json()
    body = Body(mixed, "runs_in_pool", "sleeps", tmp_path / "notes")
    assert time.monotonic() - cancel(body) < PATIENCE_S + FREE_WITHIN_S

    assert len(body.notes()) == 1
    assert not psutil.pid_exists(before)
    response = answered(lambda: mixed.call("runs_in_pool", {}), 200)
    assert response.json() != before
