"""Runners that stop for less than their lease, or lose a connection: nobody takes their jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from harness.jobs import check_at_rest, losses
from harness.postgres import Clones, terminate
from harness.site import Site, eventually, site
from harness.witness import Witness


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    """With default settings. Gateway and runner are two maintainers."""
    with clones.migrated() as url, site(url, functions="witness_functions") as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(served: Site) -> Iterator[None]:
    yield
    check_at_rest(served.database_url)


def test_a_runner_that_stops_for_less_than_its_lease_keeps_its_jobs(served: Site, seen: Witness) -> None:
    ids = [served.submit("witnessed", seen.input(number, number)) for number in range(8)]
    eventually(lambda: seen.started(8), "all of them run")
    with served["runner-0"].frozen():
        time.sleep(5)  # a sixth of its lease: it is silent for far longer than maintainers look for
    for job_id in ids:
        job = served.final(job_id)
        assert (job["status"], job["attempt"]) == ("succeeded", 1), job
    assert seen.starts() == seen.ends() == dict.fromkeys(ids, 1)
    assert losses(served) == []


def test_a_runner_whose_connection_is_ended_keeps_its_jobs(served: Site, seen: Witness) -> None:
    ids = [served.submit("witnessed", seen.input(4, number)) for number in range(8)]
    eventually(lambda: seen.started(8), "all of them run")
    for _ in range(5):
        ended = eventually(lambda: terminate(served.database_url, "headrace-runner-listen"), "it listens")
        assert ended == 1
        time.sleep(0.6)  # so that maintainers look in between, each 0.25 s: nothing tells when they have
    for job_id in ids:
        job = served.final(job_id)
        assert (job["status"], job["attempt"]) == ("succeeded", 1), job
    assert seen.starts() == seen.ends() == dict.fromkeys(ids, 1)
    assert losses(served) == []
