"""Executors that end in the middle of a call: it starts again where it may, and the next one works."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, eventually, site


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url) as running:
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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
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
    psutil.wait_procs([executor], timeout=2)
    assert not executor.is_running()

    assert served.call("nap", {"seconds": 0}).json()["pid"] != executor.pid
