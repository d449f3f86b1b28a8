"""A supervisor that is killed takes all of its processes with it, whatever they are doing."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import START_S, Process, Site, answered, eventually, site
from leaving_functions import LEFT, is_alive, pids

NUMB = """
from headrace import Budget, function
from site_functions import *
from site_functions import stuck as stuck_for_a_moment

stuck = function(budget=Budget(hard=60), attempts=1)(stuck_for_a_moment.fn)
del stuck_for_a_moment
"""
GONE_WITHIN_S = 10.0


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, runners=0) as running:
        running.write_module("plain", "from site_functions import note, note_alone")
        running.write_module("numb", NUMB)
        yield running


@pytest.mark.parametrize(("functions", "busy_with"), [("numb", "stuck"), ("plain", "note_alone")])
def test_nothing_outlives_a_killed_supervisor(
    served: Site, tmp_path: Path, functions: str, busy_with: str
) -> None:
    """Neither an executor that is idle nor one that is busy: in C, beside a thread that reads, or alone."""
    runner = served.start_runner(HEADRACE_FUNCTIONS=functions, HEADRACE_EXECUTORS="2")
    answered(lambda: served.call("note", {"path": "/dev/null"}), 200, within=START_S)
    eventually(lambda: served.metric(runner, "headrace_runner_executors_ready") == 2, "both are ready")
    family = runner.descendants()
    assert len(family) >= 4  # the warden, the fork server and the executors

    inputs = {"stuck": {"seconds": 30}, "note_alone": {"path": str(tmp_path / "notes"), "seconds": 30}}
    with served.calling((busy_with, inputs[busy_with])) as (running,):
        eventually(lambda: is_running(served), "it runs")
        runner.signal(signal.SIGKILL)
        check_nothing_is_left(family)
        problem(running.result(), 502, "worker-lost")


def is_running(served: Site) -> bool:
    return served.metric(served["runner"], "headrace_runner_running_calls", slots="(main)") == 1


# ---------------------------------------------------------------------- what functions have started


@contextlib.contextmanager
def one_hangs(served: Site, path: Path, *, is_clean: bool = True) -> Iterator[Process]:
    """A runner with two executors, in one of which a function hangs that has started others."""
    runner = served.start_runner(HEADRACE_FUNCTIONS="leaving_functions", HEADRACE_EXECUTORS="2")
    leaves = ("leaves", {"path": "/dev/null", "is_clean": is_clean})
    answered(lambda: served.call(*leaves), 200, within=START_S)
    job_id = served.submit("leaves_and_hangs", {"path": str(path), "seconds": 60, "is_clean": is_clean})
    try:
        eventually(lambda: len(pids(str(path))) == LEFT + 1, "it hangs")
        assert all(map(is_alive, pids(str(path))))
        yield runner
    finally:
        runner.kill()
        served.post(f"/jobs/{job_id}/cancel", b"")  # no later runner is to start it again


def check_nothing_is_left(family: list[psutil.Process], path: Path | None = None) -> None:
    """Nothing runs; zombies may wait for init, which isn't ours."""
    wanted = [*(one.pid for one in family), *(pids(str(path)) if path else ())]
    eventually(lambda: not any(map(is_alive, wanted)), "nothing is left", within=GONE_WITHIN_S)


@pytest.mark.parametrize("killed", ["supervisor", "group", "supervisor and warden"])
def test_what_functions_have_started_ends_with_the_supervisor(
    served: Site, tmp_path: Path, killed: str
) -> None:
    """Who has left group and environment is found below the fork server, which "group" kills as well."""
    with one_hangs(served, tmp_path / "pids", is_clean=killed != "group") as runner:
        family = runner.descendants()
        if killed == "supervisor and warden":
            runner.warden().kill()
        if killed == "group":
            runner.kill()
        else:
            runner.signal(signal.SIGKILL)
        check_nothing_is_left(family, tmp_path / "pids")


def test_a_warden_that_is_killed_is_replaced_and_the_next_one_knows_all(served: Site, tmp_path: Path) -> None:
    with one_hangs(served, tmp_path / "pids") as runner:
        warden = runner.warden()
        warden.kill()
        eventually(lambda: runner.said("the warden ended with exit code -9"), "it is noticed")

        def another() -> psutil.Process | None:
            with contextlib.suppress(IndexError, psutil.NoSuchProcess):
                found = runner.warden()
                return found if found.pid != warden.pid else None
            return None

        eventually(another, "there is another")
        family = runner.descendants()
        runner.signal(signal.SIGKILL)
        check_nothing_is_left(family, tmp_path / "pids")


def test_a_fork_server_that_is_killed_leaves_nothing_and_is_replaced(served: Site, tmp_path: Path) -> None:
    with one_hangs(served, tmp_path / "pids", is_clean=False) as runner:
        hanging = psutil.Process(pids(str(tmp_path / "pids"))[0])
        server = hanging.parent()
        assert server is not None
        server.kill()
        check_nothing_is_left([server, hanging], tmp_path / "pids")
        answered(lambda: served.call("leaves", {"path": str(tmp_path / "more")}), 200)
        family = runner.descendants()
        runner.signal(signal.SIGKILL)
        check_nothing_is_left(family, tmp_path / "more")


def test_a_runner_that_leaves_in_order_leaves_nothing(served: Site, tmp_path: Path) -> None:
    runner = served.start_runner(HEADRACE_FUNCTIONS="leaving_functions")
    path = tmp_path / "pids"
    answered(lambda: served.call("leaves", {"path": "/dev/null"}), 200, within=START_S)
    answered(lambda: served.call("leaves", {"path": str(path)}), 200)
    assert len(pids(str(path))) == LEFT
    assert all(map(is_alive, pids(str(path))))
    family = runner.descendants()
    assert runner.stop() == 0
    check_nothing_is_left(family, path)
