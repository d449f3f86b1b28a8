"""A supervisor that is stopped in its tracks: its executors end before their leases, and it serves again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.jobs import check_at_rest
from harness.postgres import Clones
from harness.site import START_S, Site, answered, eventually, site
from leaving_functions import LEFT, is_alive, pids

LEASE_S = 3
MOMENT_S = 0.7  # a second less than what a beat grants, at least
SETTINGS = {"HEADRACE_LEASE": str(LEASE_S), "HEADRACE_EXECUTORS": "2"}


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="leaving_functions", settings=SETTINGS) as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(served: Site) -> Iterator[None]:
    yield
    check_at_rest(served.database_url)


def hang(served: Site, path: Path) -> list[str]:
    """Two jobs that hang in the only runner, with all that they have started."""
    place = {"path": str(path), "seconds": 60}
    ids = [served.submit("leaves_and_hangs", place) for _ in range(2)]
    eventually(lambda: len(pids(str(path))) == 2 * (LEFT + 1), "both hang")
    return ids


def test_one_that_is_frozen_for_a_moment_loses_nothing(served: Site) -> None:
    """The first test here: nobody has said anything yet."""
    answered(lambda: served.call("leaves", {"path": "/dev/null"}), 200)
    runner = served["runner-0"]
    before = {one.pid for one in runner.descendants()}
    for _ in range(2):
        with runner.frozen():
            time.sleep(MOMENT_S)
        answered(lambda: served.call("leaves", {"path": "/dev/null"}), 200)
    assert before <= {one.pid for one in runner.descendants()}
    assert not runner.said("this process was frozen")


def test_jobs_of_a_frozen_supervisor_end_before_they_start_elsewhere(served: Site, tmp_path: Path) -> None:
    ids = hang(served, tmp_path / "pids")
    frozen = served["runner-0"]
    with frozen.frozen():
        other = served.start_runner("other")
        for job_id in ids:
            job = served.final(job_id, within=START_S)
            assert (job["status"], job["attempt"]) == ("succeeded", 2), job
            assert job["result"] == {"attempt": 2, "alive": []}  # nobody of the first start was left then

    eventually(lambda: frozen.said("this process was frozen"), "it is told")
    eventually(lambda: served.runners_of("leaves") == 2, "it serves again")
    assert {served.job(job_id)["attempt"] for job_id in ids} == {2}
    # Executors that are killed again and again would wait for longer and longer.
    assert not frozen.said("executor 0 is started again in")
    assert other.stop() == 0


def test_a_lone_supervisor_that_thaws_starts_the_jobs_again(served: Site, tmp_path: Path) -> None:
    ids = hang(served, tmp_path / "pids")
    runner = served["runner-0"]
    with runner.frozen():
        eventually(lambda: not any(map(is_alive, pids(str(tmp_path / "pids")))), "they are killed")
        eventually(lambda: served.job(ids[0])["status"] == "queued", "the lease has run out")
    for job_id in ids:
        job = served.final(job_id)
        assert (job["status"], job["result"]["attempt"]) == ("succeeded", 2), job
    answered(lambda: served.call("leaves", {"path": "/dev/null"}), 200)


def test_a_supervisor_that_is_killed_while_it_is_frozen_leaves_nothing(served: Site, tmp_path: Path) -> None:
    """The last test here."""
    ids = hang(served, tmp_path / "pids")
    runner = served["runner-0"]
    family = [one.pid for one in psutil.Process(runner.pid).children(recursive=True)]
    with runner.frozen():
        runner.signal(signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, [*family, *pids(str(tmp_path / "pids"))])), "nothing is left")
    served.start_runner("other")
    for job_id in ids:
        assert served.final(job_id, within=START_S)["status"] == "succeeded"
