"""Two thousand jobs while everything that can be lost is lost, one after the other, for two minutes.

Clients choose at random, by a seed that is printed; `HEADRACE_TEST_SEED` gives another run the same choices.
The moved clock has a test of its own, test_moved_clock.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

import httpx2
import pytest
from harness.jobs import all_final, check_at_rest
from harness.lost_starts import UNCHARGED, Losses, alone_starts
from harness.own_postgres import OwnPostgres, own_postgres
from harness.postgres import query
from harness.relay import Relay, database_relay
from harness.site import PATIENCE_S, Site, eventually, free_port, site
from harness.witness import Witness

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

JOBS = 2000
SECONDS = 120
CLIENTS = 6
LEASE = 5
KILLER_S = 0.1
MOST_FAILED = 0.03
"""Of all jobs. A runner has 8 slots, so a loss takes 8 starts at most. In each round of the faults below
there are 8 losses, and a job fails when it has lost three starts: 21 of about 900 at most.
"""
SEED = int(os.environ.get("HEADRACE_TEST_SEED") or random.randrange(2**32))
_JOBS = "SELECT id::text, function, state, error_category, attempt, charged, attempts, input, result FROM job"
_KILLERS = "SELECT id::text FROM job WHERE function = 'witnessed_killer'"
_OF_KEYS = "SELECT idempotency_key, id::text FROM job WHERE idempotency_key = ANY (%s)"
_AGAIN = "SELECT reason FROM job_event WHERE from_state = 'running' AND state = 'queued'"


@dataclass
class Place:
    """All that can be broken: two gateways, two runners, Postgres, and the ways of one of each to it."""

    server: OwnPostgres
    served: Site
    link: Relay
    gateway_link: Relay
    other_port: int
    seen: Witness
    losses: Losses
    killers: int = 0
    asking: dict[str, str] = field(default_factory=dict)
    """Where requests are under way, by their keys."""
    unanswered: dict[str, str] = field(default_factory=dict)
    """Jobs that were committed by a gateway that was killed before it could say so, by their keys."""

    @property
    def urls(self) -> tuple[str, str]:
        return self.served.url, f"http://127.0.0.1:{self.other_port}"

    def start_gateway(self, name: str) -> None:
        """The second one reaches Postgres through a link of its own."""
        port = {"gateway": self.served.port, "gateway-2": self.other_port}[name]
        url = {"gateway": self.server.url, "gateway-2": self.gateway_link.url}[name]
        self.served.start(name, "headrace", "gateway", HEADRACE_PORT=str(port), HEADRACE_DATABASE_URL=url)

    def start_runner(self, name: str) -> None:
        """The second one reaches Postgres through the link."""
        url = {"runner-0": self.server.url, "runner-1": self.link.url}[name]
        self.served.start_runner(name, HEADRACE_DATABASE_URL=url)

    # ------------------------------------------------------------------ faults

    def kill_executor(self) -> None:
        def executors() -> set[int]:
            started = {pid for pid, _ in self.seen.processes()}
            return started & {process.pid for process in self.served["runner-0"].descendants()}

        pid = eventually(executors, "an executor of it has run a job").pop()
        with self.losses.of_executor(pid):
            os.kill(pid, signal.SIGKILL)

    def kill_runner(self) -> None:
        with self.losses.of_runners("runner-0"):
            self.served["runner-0"].kill()
        self.start_runner("runner-0")

    def kill_both_runners(self) -> None:
        with self.losses.of_runners("runner-0", "runner-1"):
            for name in ("runner-0", "runner-1"):
                self.served[name].kill()
        for name in ("runner-0", "runner-1"):
            self.start_runner(name)

    def kill_gateway(self) -> None:
        self.served["gateway"].kill()
        self.start_gateway("gateway")

    def kill_other_gateway(self) -> None:
        self.served["gateway-2"].kill()
        self.start_gateway("gateway-2")

    def kill_gateway_before_its_answer(self) -> None:
        """A job is committed, and its gateway is killed before it hears of that."""

        def committed() -> dict[str, str]:
            keys = [key for key, url in list(self.asking.items()) if url == self.urls[1]]
            found: dict[str, str] = dict(query(self.server.url, _OF_KEYS, keys))
            time.sleep(0.1)  # an answer that had passed the link before it was held is out by then
            return {key: job_id for key, job_id in found.items() if self.asking.get(key) == self.urls[1]}

        self.gateway_link.hold_answers(to="submit_v3")
        found = eventually(committed, "a job is committed whose client isn't answered")
        self.served["gateway-2"].kill()
        self.unanswered |= found
        self.gateway_link.cut()
        self.gateway_link.restore()
        self.start_gateway("gateway-2")

    def restart_postgres(self) -> None:
        self.server.stop()
        self.server.start()

    def crash_postgres(self) -> None:
        self.server.crash()
        time.sleep(1)  # how long it is away
        self.server.start()

    def freeze_runner(self) -> None:
        with self.losses.of_runners("runner-0"), self.served["runner-0"].frozen():
            time.sleep(LEASE + 2)  # its jobs are another's by then

    def cut_link(self) -> None:
        with self.losses.of_runners("runner-1"):
            self.link.cut()
            time.sleep(1)  # how long it is away
            self.link.restore()

    def freeze_link(self) -> None:
        with self.losses.of_runners("runner-1"):
            self.link.freeze()
            time.sleep(LEASE + 2)  # its jobs are another's by then
            self.link.restore()

    def submit_killer(self) -> None:
        """A job whose function kills its process each time."""
        headers = self.served.headers(Prefer="respond-async")

        def accepted() -> bool:
            for url in self.urls:
                with contextlib.suppress(httpx2.TransportError):  # a fault before it is still felt
                    path, body = f"{url}/fn/witnessed_killer", self.seen.input(KILLER_S)
                    if self.served.client.post(path, json=body, headers=headers).status_code == 202:
                        return True
            return False

        eventually(accepted, "a gateway accepts it")
        self.killers += 1

    @property
    def faults(self) -> list[Callable[[], None]]:
        return [
            self.kill_executor,
            self.freeze_runner,
            self.kill_gateway,
            self.restart_postgres,
            self.cut_link,
            self.kill_runner,
            self.submit_killer,
            self.crash_postgres,
            self.kill_other_gateway,
            self.kill_gateway_before_its_answer,
            self.freeze_link,
            self.kill_both_runners,
        ]


class Clients:
    """Each submits one job after the other under a key of its own, here and there until it is accepted."""

    def __init__(self, place: Place) -> None:
        self.accepted: dict[str, int] = {}
        self.unanswered: set[str] = set()
        self.tries = 0
        self._place = place
        self._numbers = itertools.count()
        self._enough = Event()

    def run(self, which: int) -> None:
        choices = random.Random(SEED + which)
        with httpx2.Client(timeout=PATIENCE_S, trust_env=False) as client:
            while not self._enough.wait(choices.uniform(0.1, 0.3)):
                number = next(self._numbers)
                job_id = self._submit(client, number, choices.sample(self._place.urls, 2))
                assert job_id not in self.accepted
                self.accepted[job_id] = number

    def stop(self) -> None:
        self._enough.set()

    def _submit(self, client: httpx2.Client, number: int, urls: list[str]) -> str:
        key, body = str(uuid.uuid4()), {**self._place.seen.input(0.1), "number": number}
        headers = self._place.served.headers(Prefer="respond-async", Idempotency_Key=key)
        deadline = time.monotonic() + 2 * PATIENCE_S
        for url in itertools.cycle(urls):
            assert time.monotonic() < deadline, f"nobody accepts {number}"
            self.tries += 1
            self._place.asking[key] = url
            try:
                response = client.post(f"{url}/fn/witnessed", json=body, headers=headers)
            except httpx2.TransportError:
                self.unanswered.add(key)
                time.sleep(0.1)  # else it would ask without end while nobody is there
                continue
            finally:
                del self._place.asking[key]
            if response.status_code == 202:
                return response.json()["job_id"]
            assert response.status_code == 503, response.text
            time.sleep(0.1)  # the same
        raise AssertionError("a cycle has no end")


@pytest.fixture
def place(seen: Witness) -> Iterator[Place]:
    settings = {"HEADRACE_LEASE": str(LEASE)}
    with (
        own_postgres() as server,
        database_relay(server.url) as link,
        database_relay(server.url) as gateway_link,
        site(server.url, functions="witness_functions", runners=0, settings=settings) as served,
    ):
        made = Place(server, served, link, gateway_link, free_port(), seen, Losses(seen))
        for name in ("runner-0", "runner-1"):
            made.start_runner(name)
        made.start_gateway("gateway-2")
        served.wait_ready(2)
        yield made


def test_two_thousand_jobs(place: Place, record_property: Callable[[str, object], None]) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    clients, faults = Clients(place), Counter[str]()
    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as threads:
        running = [threads.submit(clients.run, which) for which in range(CLIENTS)]
        try:
            for fault in itertools.cycle(place.faults):
                enough = len(clients.accepted) >= JOBS and len(faults) == len(place.faults)
                if enough and time.monotonic() - began > SECONDS:
                    break
                go_on(place, clients)
                assert not any(client.done() for client in running), "a client has failed"
                fault()
                faults[fault.__name__] += 1
        finally:
            clients.stop()
    for client in running:
        client.result()
    lasted = time.monotonic() - began

    eventually(lambda: all_final(place.server.url), "all jobs are final", within=120)
    calmed = time.monotonic() - began - lasted
    check_at_rest(place.server.url)
    figures = check(place, clients)
    figures |= {"seconds": round(lasted), "seconds until all were final": round(calmed, 1)}
    figures |= {"faults": dict(faults)}
    for name, value in figures.items():
        record_property(name, value)
    sys.stdout.write(f"{json.dumps(figures)}\n")  # shown by `pytest -s`


def go_on(place: Place, clients: Clients) -> None:
    """Wait until jobs are accepted and executed again."""
    accepted, ended = len(clients.accepted), place.seen.ends().total()
    eventually(
        lambda: len(clients.accepted) > accepted + 20 and place.seen.ends().total() > ended + 20,
        "jobs are accepted and executed",
        within=2 * PATIENCE_S,
    )


def check(place: Place, clients: Clients) -> dict[str, object]:
    """Check every job, against what its client was told and what was really executed; returns figures."""
    starts, ends = place.seen.starts(), place.seen.ends()
    jobs = query(place.server.url, _JOBS)
    states: Counter[str] = Counter()
    place.losses.of_killers([job_id for (job_id,) in query(place.server.url, _KILLERS)], KILLER_S)
    for job_id, function, state, category, attempt, charged, attempts, asked, answered in jobs:
        what = f"job {job_id}: {state}, {category}, {attempt} attempts, {starts[job_id]} starts"
        assert starts[job_id] <= attempt <= attempts + UNCHARGED, what
        states[state if state == "succeeded" else f"{state}: {category}"] += 1
        if state == "succeeded":
            assert function == "witnessed", what
            assert ends[job_id] > 0, what
            result = json.loads(answered)
            assert (result["job_id"], result["number"]) == (job_id, json.loads(asked)["number"]), what
            assert result["attempt"] == attempt, what
        else:
            assert (state, category, charged) == ("failed", "attempts-exhausted", attempts), what
            place.losses.check(place.server.url, job_id, attempts)
    numbers = {job_id: json.loads(row[-2])["number"] for job_id, name, *row in jobs if name == "witnessed"}
    assert numbers == clients.accepted, "a job for each that was accepted, and no other"
    assert len(set(numbers.values())) == len(numbers)
    assert len(numbers) - states["succeeded"] <= MOST_FAILED * len(numbers)  # and each of them was checked
    assert place.unanswered
    assert place.unanswered.keys() <= clients.unanswered
    assert set(place.unanswered.values()) <= numbers.keys()
    assert place.killers <= len(jobs) - len(numbers)
    assert starts.keys() <= {job_id for job_id, *_ in jobs}
    alone, together = alone_starts(place.server.url), place.seen.together()
    assert together, "jobs run beside others"
    assert not alone & together, "a job whose process was lost runs beside others"
    requeued = query(place.server.url, _AGAIN)
    return {
        "jobs accepted": len(jobs),
        "requests": clients.tries + place.killers,
        "states": dict(states),
        "committed by gateways that were killed before they answered": len(place.unanswered),
        "executions": starts.total(),
        "executed more than once": sum(number > 1 for number in starts.values()),
        "most executions of one job": max(starts.values()),
        "starts that came to nothing": len(requeued),
        "starts beside which nothing ran": len(alone),
    }
