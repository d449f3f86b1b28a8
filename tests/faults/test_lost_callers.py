"""Calls that lose their process while they wait for what they called: what has ended isn't done again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from harness.jobs import check_at_rest
from harness.postgres import Clones, query
from harness.relay import socket_relay
from harness.site import Site, eventually, site
from harness.witness import Witness

_CHILDREN = (
    "SELECT j.function, j.id::text FROM job j JOIN job_event e ON e.job_id = j.id AND e.sequence = 1"
    " WHERE e.actor LIKE 'call:' || %s || ':%%'"
)


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="witness_functions") as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(served: Site) -> Iterator[None]:
    yield
    check_at_rest(served.database_url)


def children(served: Site, job_id: str) -> dict[str, str]:
    """The jobs that a call has made, by function."""
    return dict(query(served.database_url, _CHILDREN, job_id))


def check_taken_over(served: Site, seen: Witness, job_id: str) -> None:
    """Check that the second attempt has had what the first one's calls have brought."""
    made = children(served, job_id)
    job = served.final(job_id)
    assert (job["status"], job["attempt"]) == ("succeeded", 2), job
    quick, slow = job["result"]
    assert (quick["job_id"], quick["attempt"]) == (made["witnessed"], 1)
    assert (slow["job_id"], slow["attempt"]) == (made["witnessed_neighbour"], 2)  # it ran when it was lost
    assert children(served, job_id) == made
    assert seen.starts() == {job_id: 2, quick["job_id"]: 1, slow["job_id"]: 2}
    assert seen.ends() == dict.fromkeys([job_id, quick["job_id"], slow["job_id"]], 1)


def test_a_caller_of_a_killed_runner_gets_what_its_calls_have_brought(served: Site, seen: Witness) -> None:
    job_id = served.submit("witnessed_caller", seen.input(1.5))
    eventually(lambda: seen.started(3), "one of its calls has ended, one runs")
    served["runner-0"].kill()
    served.start_runner("runner-0")

    check_taken_over(served, seen, job_id)


def test_a_caller_of_a_lost_executor_gets_what_its_calls_have_brought(served: Site, seen: Witness) -> None:
    job_id = served.submit("witnessed_caller", seen.input(1.5))
    eventually(lambda: seen.started(3), "one of its calls has ended, one runs")
    os.kill(seen.pid(job_id), signal.SIGKILL)

    check_taken_over(served, seen, job_id)


def test_a_direct_caller_of_a_killed_runner_does_too(served: Site, seen: Witness) -> None:
    with served.calling(("witnessed_caller", seen.input(1.5))) as (running,):
        eventually(lambda: seen.started(3), "one of its calls has ended, one runs")
        served["runner-0"].kill()
        served.start_runner("runner-0")
        answer = running.result()
    job_id = answer.headers.get("headrace-job-id") or answer.json()["job_id"]

    if answer.status_code == 202:
        check_taken_over(served, seen, job_id)
    else:
        assert answer.status_code == 200, answer.text
    assert sorted(seen.starts().values()) == [1, 2, 2]


def test_a_caller_whose_link_is_cut_gets_what_its_calls_bring(served: Site, seen: Witness) -> None:
    """Its runner stops it when it notices, while the gateway starts it again: what it has called goes on."""
    with socket_relay(served.folder / "runner-0.sock") as link:
        served["gateway"].stop()
        served.start_gateway()
        served.wait_ready()
        with served.calling(("witnessed_caller", seen.input(3))) as (running,):
            eventually(lambda: seen.started(3), "one of its calls has ended, one runs")
            link.cut()
            answer = running.result()
        assert answer.status_code in (200, 202), answer.text
        job_id = answer.headers.get("headrace-job-id") or answer.json()["job_id"]
        job = served.final(job_id)  # no other runner was there, so it has become a job
        link.restore()
        served.wait_ready()

    assert (job["status"], job["attempt"]) == ("succeeded", 2), job
    quick, slow = job["result"]
    assert (quick["attempt"], slow["attempt"]) == (1, 1)
    assert seen.starts() == {job_id: 2, quick["job_id"]: 1, slow["job_id"]: 1}
    assert seen.ends() == dict.fromkeys([job_id, quick["job_id"], slow["job_id"]], 1)
