"""Executors that end in the middle of a call: it starts again where it may, and the next one works."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.postgres import Clones, query
from harness.problem import problem
from harness.site import Site, eventually, site
from harness.witness import Witness
from leaving_functions import is_alive

BYSTANDERS = 16
_REASONS = (
    "SELECT DISTINCT reason FROM job_event WHERE job_id = ANY (%s::uuid[])"
    " AND from_state = 'running' AND state = 'queued'"
)


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    functions = "site_functions,witness_functions"
    with clones.migrated() as url, site(url, functions=functions) as running:
        yield running


@pytest.fixture(autouse=True)
def next_one_works(served: Site) -> Iterator[None]:
    yield
    assert served.call("echo", {"text": "a"}).status_code == 200


def test_a_call_whose_executor_is_lost_runs_once_more(served: Site) -> None:
    response = served.call("dies_once", {})

    assert (response.status_code, response.json()["attempt"]) == (200, 2)


def test_after_the_last_attempt_it_is_lost(served: Site) -> None:
    assert problem(served.call("dies", {}), 502, "worker-lost")["attempt"] == 2


def test_what_may_start_once_does(served: Site) -> None:
    assert problem(served.call("dies_at_once", {}), 502, "worker-lost")["attempt"] == 1


def test_a_crash_of_unknown_cause_is_charged_to_all_in_it(served: Site, tmp_path: Path) -> None:
    """Unlike a kill at a limit: any of them may have caused it."""
    notes = tmp_path / "notes"
    waiting = {"path": str(notes), "mark": "x", "seconds": 1.5}
    with served.calling(*[("note_once", waiting)] * 3, *[("note_twice", waiting)] * 3) as running:
        eventually(lambda: notes.exists() and notes.read_text().count("x") == 6, "all of them run")
        problem(served.call("dies_at_once", {}), 502, "worker-lost")
        answers = [future.result() for future in running]

    for answer in answers[:3]:
        assert problem(answer, 502, "worker-lost")["attempt"] == 1
    assert [(answer.status_code, answer.json()["attempt"]) for answer in answers[3:]] == [(200, 2)] * 3
    assert notes.read_text().count("x") == 9


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)])
def test_a_signal_is_a_loss_like_any_other(served: Site, tmp_path: Path, number: int) -> None:
    notes = tmp_path / "notes"
    pid = served.call("nap", {"seconds": 0}).json()["pid"]
    with served.calling(("note", {"path": str(notes), "mark": "x", "seconds": 0.5})) as (running,):
        eventually(notes.exists, "the call runs")
        os.kill(pid, number)
        assert running.result().status_code == 200
    assert notes.read_text().count("x") == 2


def test_the_fork_server_may_be_lost_too(served: Site) -> None:
    executor = psutil.Process(served.call("nap", {"seconds": 0}).json()["pid"])
    forker = executor.parent()
    assert forker is not None
    assert forker.pid != served["runner-0"].pid
    forker.kill()
    eventually(lambda: not is_alive(executor.pid), "it has ended", within=10)

    assert served.call("nap", {"seconds": 0}).json()["pid"] != executor.pid


def bystanders(served: Site, seen: Witness) -> list[str]:
    """Jobs that fill an executor, and run until it is lost."""
    jobs = [served.submit("witnessed_bystander", seen.input(40, number)) for number in range(BYSTANDERS)]
    eventually(lambda: seen.started(BYSTANDERS), "all of them run")
    return jobs


def check_bystanders(served: Site, seen: Witness, jobs: list[str], charged: int) -> None:
    """Check that each was lost once, and then ran alone: nothing was lost beside it, so nothing twice."""
    for number, job_id in enumerate(jobs):
        job = served.final(job_id)
        assert (job["status"], job["attempt"]) == ("succeeded", 2), job
        assert job["result"]["number"] == number
    assert [seen.starts()[job_id] for job_id in jobs] == [2] * BYSTANDERS
    found = query(served.database_url, "SELECT DISTINCT charged FROM job WHERE id = ANY (%s::uuid[])", jobs)
    assert found == [(charged,)]
    check_alone(seen, jobs)


def check_alone(seen: Witness, bystanders: list[str]) -> None:
    later = seen.after_first_starts()
    theirs = [place for place, (job_id, _) in enumerate(later) if job_id in bystanders]
    assert len(theirs) == 2 * len(bystanders)
    for start, end in zip(theirs[::2], theirs[1::2], strict=True):
        assert (later[start], later[end]) == ((later[start][0], "start"), (later[start][0], "end"))
        assert end == start + 1, later


def test_what_kills_its_process_each_time_exhausts_nobody_else(served: Site, seen: Witness) -> None:
    jobs = bystanders(served, seen)
    poison = served.submit("witnessed_killer", seen.input(0.1))

    job = served.final(poison)
    assert (job["status"], job["error"]["category"], job["attempt"]) == ("failed", "attempts-exhausted", 3)
    assert seen.starts()[poison] == 3
    check_bystanders(served, seen, jobs, charged=2)


def test_what_is_killed_at_its_limit_each_time_exhausts_nobody_else(served: Site, seen: Witness) -> None:
    """Not even the starts that are free: others in its process are displaced once, and then alone."""
    jobs = bystanders(served, seen)
    poisons = [served.submit("witnessed_stuck", seen.input(30)) for _ in range(4)]

    for poison in poisons:
        job = served.final(poison)
        assert (job["status"], job["error"]["category"]) == ("failed", "hard-limit-exceeded"), job
        assert seen.starts()[poison] == job["attempt"] == 1
    check_bystanders(served, seen, jobs, charged=1)
    reasons = query(served.database_url, _REASONS, jobs)
    assert reasons == [("its process was killed for another call",)]


def test_direct_calls_beside_a_poison_are_answered(served: Site, seen: Witness) -> None:
    calls = [("witnessed_bystander", seen.input(40, number)) for number in range(BYSTANDERS)]
    with served.calling(*calls) as running:
        eventually(lambda: seen.started(BYSTANDERS), "all of them run")
        lost = served.call("witnessed_killer", seen.input(0.1))
        answers = [future.result() for future in running]

    assert problem(lost, 502, "worker-lost")["attempt"] == 3
    assert [(answer.status_code, answer.json()["attempt"]) for answer in answers] == [(200, 2)] * BYSTANDERS
    jobs = [answer.json()["job_id"] for answer in answers]
    assert [seen.starts()[job_id] for job_id in jobs] == [2] * BYSTANDERS
    assert seen.starts().total() == 2 * BYSTANDERS + 3
    check_alone(seen, jobs)
