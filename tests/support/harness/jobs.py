"""Jobs that come without pause, and what must hold of a ledger once they are all final."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx2

from harness.postgres import query
from harness.site import PATIENCE_S, Site
from harness.witness import Witness
from headrace.domain import FINAL

_EVENTS = "SELECT job_id::text, from_state, state, attempt FROM job_event ORDER BY job_id, sequence"
_JOBS = "SELECT id::text, state, attempt, charged, attempts, result FROM job"
_ENTRIES = "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'headrace.run'"


def all_final(url: str) -> bool:
    """Whether there is no job that isn't."""
    return query(url, "SELECT count(*) FROM job WHERE finished_at IS NULL") == [(0,)]


def numbers(url: str) -> dict[str, int]:
    """What each job that there is was asked for; and, as it must have succeeded, has answered."""
    found: dict[str, int] = {}
    for job_id, state, asked, answered in query(url, "SELECT id::text, state, input, result FROM job"):
        assert state == "succeeded", job_id
        found[job_id] = json.loads(asked)["number"]
        assert json.loads(answered)["number"] == found[job_id]
    return found


def check_at_rest(url: str) -> None:
    """Check that each job's events lead to where it stands, and that nothing of the queue is left.

    Raises:
        AssertionError: a job isn't final, was moved after it was, or has more starts than it may; or an
            entry is left in the queue.
    """
    events: dict[str, list[tuple[Any, ...]]] = {}
    for job_id, *event in query(url, _EVENTS):
        events.setdefault(job_id, []).append(tuple(event))
    jobs = query(url, _JOBS)
    assert {job_id for job_id, *_ in jobs} == events.keys()
    for job_id, state, attempt, charged, attempts, result in jobs:
        story = events[job_id]
        what = f"job {job_id} is {state}: {story}"
        assert state in FINAL, what
        assert [before for before, *_ in story] == [None, *(after for _, after, _ in story[:-1])], what
        assert not FINAL & {before for before, *_ in story}, what
        assert story[-1][1:] == (state, attempt), what
        assert charged <= attempts, what
        assert attempt <= charged + 3, what
        assert (result is not None) == (state == "succeeded"), what
    assert query(url, _ENTRIES) == [(0,)]


def losses(served: Site) -> list[str]:
    """What maintainers have said of lost runners."""
    events = [line["event"] for process in served.processes for line in process.lines("runner ")]
    return [event for event in events if " was lost: " in event]


class Submitters:
    """Clients that submit one job after the other, each on a connection of its own, until they are told.

    Whoever gets no answer goes on with the next job, so one may have been accepted that nobody knows of.

    Args:
        served: the site to submit to.
        seen: what the jobs are to be witnessed by.
        seconds: how long each takes.
    """

    def __init__(self, served: Site, seen: Witness, seconds: float = 0) -> None:
        self.accepted: dict[str, int] = {}
        self.unanswered = 0
        self._served = served
        self._input = seen.input(seconds)
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._clients: list[Future[None]] = []

    @contextlib.contextmanager
    def running(self, clients: int) -> Iterator[None]:
        with ThreadPoolExecutor(clients) as threads:
            self._clients = [threads.submit(self._submit_for_ever) for _ in range(clients)]
            try:
                yield
            finally:
                self._stop.set()
        for client in self._clients:
            client.result()

    def have(self, number: int) -> bool:
        """Whether so many jobs were accepted; raises what a client has failed with."""
        for client in self._clients:
            if client.done():
                client.result()
        return len(self.accepted) >= number

    def _submit_for_ever(self) -> None:
        with httpx2.Client(base_url=self._served.url, timeout=PATIENCE_S, trust_env=False) as client:
            while not self._stop.wait(0.02):
                self._submit(client, next(self._numbers))

    def _submit(self, client: httpx2.Client, number: int) -> None:
        headers = self._served.headers(Prefer="respond-async")
        try:
            response = client.post("/fn/witnessed", json={**self._input, "number": number}, headers=headers)
        except httpx2.TransportError:
            self.unanswered += 1
            return
        if response.status_code == 202:
            self.accepted[response.json()["job_id"]] = number
        else:
            assert response.status_code == 503, response.text
