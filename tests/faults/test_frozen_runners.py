"""A runner that stops in its tracks past its lease, or is cut off, and comes back: its late word is void."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil
import pytest
from harness.jobs import check_at_rest
from harness.postgres import Clones
from harness.relay import database_relay
from harness.site import Process, Site, eventually, free_port, site
from harness.witness import Witness

SETTINGS = {"HEADRACE_LEASE": "2"}


@pytest.fixture
def served(clones: Clones) -> Iterator[Site]:
    """Four maintainers: two gateways and two runners."""
    with (
        clones.migrated() as url,
        site(url, functions="witness_functions", runners=2, settings=SETTINGS) as running,
    ):
        running.start("gateway-2", "headrace", "gateway", HEADRACE_PORT=str(free_port()))
        yield running
        check_at_rest(url)


def runner_of(served: Site, pid: int) -> Process:
    """The runner whose executor that is."""
    ancestors = {process.pid for process in psutil.Process(pid).parents()}
    return next(process for process in served.processes if process.pid in ancestors)


def test_what_a_revived_runner_says_of_a_lost_job_is_void(served: Site, seen: Witness) -> None:
    """It knows an outcome of the first start at once, while the second one runs.

    Its warden is frozen, too, else its executors would be killed meanwhile.
    """
    ids = [served.submit("witnessed", seen.input(3, number)) for number in range(2)]
    eventually(lambda: seen.started(2), "both run")
    frozen = runner_of(served, seen.pid(ids[0]))
    with warden_frozen(frozen), frozen.frozen():
        lost = [job_id for job_id in ids if runner_of(served, seen.pid(job_id)) is frozen]
        eventually(lambda: seen.starts().total() == 2 + len(lost), "they run elsewhere")
        eventually(lambda: seen.ends().total() == 2, "they end where nobody hears of it")
        assert {served.job(job_id)["status"] for job_id in lost} == {"running"}

    eventually(lambda: frozen.said("job "), "it is told that they aren't its own")
    assert {served.job(job_id)["status"] for job_id in lost} == {"running"}
    for number, job_id in enumerate(ids):
        job = served.final(job_id)
        attempt = 2 if job_id in lost else 1
        assert (job["status"], job["attempt"]) == ("succeeded", attempt), job
        assert (job["result"]["attempt"], job["result"]["number"]) == (attempt, number)
        assert seen.starts()[job_id] == attempt
        told = [line for line in frozen.lines(f"job {job_id} ") if "is not held any more" in line["event"]]
        assert len(told) == (job_id in lost)
    works_again(served, seen, frozen)


@contextlib.contextmanager
def warden_frozen(runner: Process) -> Iterator[None]:
    """It comes back a moment later than the runner, which has told it then that it lives."""
    warden = runner.warden()
    warden.suspend()
    try:
        yield
        eventually(lambda: runner.said("job "), "the runner is back")
    finally:
        warden.resume()


def works_again(served: Site, seen: Witness, runner: Process) -> None:
    """Wait until that runner executes jobs."""

    def executes() -> bool:
        ids = [served.submit("witnessed", seen.input(0.1)) for _ in range(4)]
        for job_id in ids:
            assert served.final(job_id)["status"] == "succeeded"
        return any(runner_of(served, seen.pid(job_id)) is runner for job_id in ids)

    eventually(executes, "it executes jobs again")


def test_a_runner_that_is_cut_off_stops_its_jobs_before_its_lease_ends(clones: Clones, seen: Witness) -> None:
    """Nothing is reset: only time tells it, and it can't tell anybody."""
    with (
        clones.migrated() as url,
        database_relay(url) as link,
        site(url, functions="witness_functions", runners=0, settings=SETTINGS) as served,
    ):
        served.start_runner("cut-off", HEADRACE_DATABASE_URL=link.url)
        served.wait_ready()
        job_id = served.submit("witnessed", seen.input(2))
        eventually(lambda: seen.started(1), "it runs")
        link.freeze()
        served.start_runner("other")
        job = served.final(job_id)
        assert (job["status"], job["attempt"], job["result"]["attempt"]) == ("succeeded", 2, 2)
        assert seen.attempts(job_id) == [(1, "start"), (2, "start"), (2, "end")]

        link.restore()
        works_again(served, seen, served["cut-off"])
        assert served.job(job_id) == job
        check_at_rest(url)
