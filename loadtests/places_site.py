"""A site with one gateway or more, and what became of the jobs there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx2
from call_cost import site
from comers import Story
from peers import end

from headrace.client import Client
from headrace.domain import FINAL

_START_S: Final = 60.0
_POLL_S: Final = 0.05


@contextmanager
def gateways(number: int, functions: str, **settings: str) -> Generator[tuple[list[int], str]]:
    """A site with so many gateways on one database: their ports, and a key."""
    ports = [_free_port() for _ in range(number)]
    with site(ports[0], functions, **settings) as (process, key), ExitStack() as others:
        environment = process.environ()
        for port in ports[1:]:
            others.enter_context(_another(port, environment))
        yield ports, key


@contextmanager
def _another(port: int, environment: dict[str, str]) -> Generator[None]:
    """One more gateway of a site, which knows its runner."""
    log = Path(environment["HEADRACE_HOME"], "logs", f"gateway-{port}.log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "gateway"],
            env={**environment, "HEADRACE_PORT": str(port)},
            cwd=Path(__file__).parent,
            stdout=file,
            stderr=file,
        )
    try:
        ends_at = time.monotonic() + _START_S
        while not _serves(port):
            if process.poll() is not None or time.monotonic() > ends_at:
                raise RuntimeError(f"the gateway doesn't start: {log.read_text()}")
            time.sleep(_POLL_S)
        yield
    finally:
        end(process, signal.SIGTERM)


def _serves(port: int) -> bool:
    """Whether the gateway there can have calls executed."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_all(client: Client) -> None:
    """Until no job waits or runs."""
    while any(client.jobs(status=status, limit=1).items for status in ("queued", "running")):
        time.sleep(_POLL_S * 4)


def fill_in(client: Client, stories: Iterable[Story], began_at: float) -> None:
    """Note what the ledger knows of each call's job.

    Args:
        client: of the site.
        stories: the calls.
        began_at: where their time begins, in seconds since 1970.
    """
    by_job = {story.job_id: story for story in stories if story.job_id}
    for job in _jobs(client):
        story = by_job.get(job["job_id"])
        if story is None:
            continue
        assert job["status"] in FINAL, job
        story.status = job["status"]
        if job["started_at"]:
            story.started_at = _instant(job["started_at"]) - began_at
            took_s = _instant(job["finished_at"]) - _instant(job["started_at"])
            story.excess_s = took_s - story.call.seconds


def _jobs(client: Client) -> Iterable[dict[str, Any]]:
    cursor = None
    while True:
        page = client.jobs(limit=200, cursor=cursor)
        yield from page.items
        cursor = page.cursor
        if cursor is None:
            return


def _instant(text: str) -> float:
    """Seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def cores() -> int:
    """How many this machine has for us."""
    return len(os.sched_getaffinity(0))
