"""Jobs outlive the runner that executes them, and its executors: with default settings, no lease runs out."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from harness.jobs import check_at_rest, losses
from harness.postgres import Clones, query
from harness.site import Site, eventually, site
from harness.witness import Witness

SOON_S = 15.0
"""Half of a lease: another runner has to start first, on a machine that is busy with other tests. How soon a
job starts again where one lives is measured by `make bench-restart`."""
_SESSIONS = "SELECT DISTINCT session_id::text FROM job WHERE session_id IS NOT NULL"


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="witness_functions") as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(served: Site) -> Iterator[None]:
    yield
    check_at_rest(served.database_url)


def test_the_jobs_of_a_lost_executor_run_again(served: Site, seen: Witness) -> None:
    ids = [served.submit("witnessed", seen.input(0.5, number)) for number in range(4)]
    last_chance = served.submit("witnessed_once", seen.input(0.5))
    eventually(lambda: seen.started(5), "all of them run")
    os.kill(seen.pid(ids[0]), signal.SIGKILL)

    for number, job_id in enumerate(ids):
        job = served.final(job_id)
        assert (job["status"], job["attempt"]) == ("succeeded", 2), job
        assert (job["result"]["attempt"], job["result"]["number"]) == (2, number)
    lost = served.final(last_chance)
    assert (lost["status"], lost["attempt"], lost["error"]["category"]) == ("failed", 1, "attempts-exhausted")
    assert seen.starts() == {**dict.fromkeys(ids, 2), last_chance: 1}
    assert seen.ends() == dict.fromkeys(ids, 1)


def test_the_jobs_of_a_killed_runner_are_run_by_the_next(served: Site, seen: Witness) -> None:
    ids = [served.submit("witnessed", seen.input(1, number)) for number in range(8)]
    last_chance = served.submit("witnessed_once", seen.input(1))
    eventually(lambda: seen.started(9), "all of them run")
    ((session_id,),) = query(served.database_url, _SESSIONS)
    said = losses(served)
    served["runner-0"].kill()
    assert not seen.ends()
    still_waiting = served.submit("witnessed", seen.input(0, 8))
    served.start_runner("runner-0")
    eventually(lambda: seen.started(9 + 8), "they start again", within=SOON_S)

    for number, job_id in enumerate(ids):
        job = served.final(job_id)
        assert (job["status"], job["attempt"]) == ("succeeded", 2), job
        assert (job["result"]["attempt"], job["result"]["number"]) == (2, number)
    lost = served.final(last_chance)
    assert (lost["status"], lost["attempt"], lost["error"]["category"]) == ("failed", 1, "attempts-exhausted")
    assert served.final(still_waiting)["attempt"] == 1
    assert seen.starts() == {**dict.fromkeys(ids, 2), last_chance: 1, still_waiting: 1}
    assert seen.ends() == dict.fromkeys([*ids, still_waiting], 1)
    told = f"runner {session_id} was lost: 9 jobs start again elsewhere, or end"
    assert losses(served)[len(said) :] == [told]


def test_a_job_that_was_cancelled_on_a_killed_runner_is_not_run_again(served: Site, seen: Witness) -> None:
    job_id = served.submit("witnessed", seen.input(1))
    eventually(lambda: seen.started(1), "it runs")
    with served["runner-0"].frozen():  # so it can't obey
        asked = served.post(f"/jobs/{job_id}/cancel", b"")
        assert (asked.status_code, asked.json()["status"]) == (202, "cancel_requested"), asked.text
        served["runner-0"].kill()
    served.start_runner("runner-0")

    job = served.final(job_id)
    assert (job["status"], job["attempt"]) == ("cancelled", 1)
    served.final(served.submit("witnessed", seen.input()))
    assert seen.starts()[job_id] == 1
    assert not seen.ends()[job_id]
