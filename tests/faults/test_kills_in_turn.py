"""Each process of a site is killed in turn while jobs come without pause."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from harness.jobs import Submitters, all_final, check_at_rest, numbers
from harness.own_postgres import OwnPostgres, own_postgres
from harness.site import Site, eventually, site
from harness.witness import Witness

SETTINGS = {"HEADRACE_LEASE": "2"}
MOST_STARTS = 3 + 3  # `attempts` of the function, and what isn't charged


@pytest.fixture
def server() -> Iterator[OwnPostgres]:
    with own_postgres() as running:
        yield running


@pytest.fixture
def served(server: OwnPostgres) -> Iterator[Site]:
    with site(server.url, functions="witness_functions", runners=2, settings=SETTINGS) as running:
        yield running


def test_every_accepted_job_ends_well_with_one_result(
    server: OwnPostgres, served: Site, seen: Witness
) -> None:
    submitters = Submitters(served, seen, seconds=0.2)

    def next_jobs() -> None:
        """Wait until jobs are accepted and executed again."""
        accepted, ended = len(submitters.accepted), seen.ends().total()
        eventually(
            lambda: submitters.have(accepted + 10) and seen.ends().total() > ended + 10,
            "jobs are accepted and executed",
        )

    with submitters.running(2):
        for kill in (kill_executor, kill_gateway, kill_runner, kill_postgres, kill_all_but_postgres):
            next_jobs()
            kill(server, served)
        next_jobs()

    eventually(lambda: all_final(server.url), "all jobs are final")
    check_at_rest(server.url)
    found = numbers(server.url)
    assert submitters.accepted.items() <= found.items()
    assert len(set(found.values())) == len(found)
    for job_id in submitters.accepted:
        job = served.job(job_id)
        assert (job["status"], job["result"]["attempt"]) == ("succeeded", job["attempt"]), job
    starts = seen.starts()
    assert starts.keys() == found.keys()
    assert 1 < max(starts.values()) <= MOST_STARTS


def kill_executor(server: OwnPostgres, served: Site) -> None:
    executor = max(served["runner-0"].descendants(), key=lambda process: process.create_time())
    os.kill(executor.pid, signal.SIGKILL)


def kill_gateway(server: OwnPostgres, served: Site) -> None:
    served["gateway"].kill()
    served.start_gateway()


def kill_runner(server: OwnPostgres, served: Site) -> None:
    served["runner-0"].kill()
    served.start_runner("runner-0")


def kill_postgres(server: OwnPostgres, served: Site) -> None:
    server.crash()
    time.sleep(0.5)
    server.start()


def kill_all_but_postgres(server: OwnPostgres, served: Site) -> None:
    names = ("gateway", "runner-0", "runner-1")
    for name in names:
        served[name].kill()
    for name in names[1:]:
        served.start_runner(name)
    served.start_gateway()
