"""A supervisor that is killed takes all of its processes with it, whatever they are doing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, answered, eventually, site


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, runners=0) as running:
        running.write_module("plain", "from site_functions import note, note_alone, stuck")
        yield running


@pytest.mark.parametrize(
    ("functions", "busy_with"),
    [("site_functions", ""), ("site_functions", "stuck"), ("plain", ""), ("plain", "note_alone")],
)
def test_nothing_outlives_a_killed_supervisor(
    served: Site, tmp_path: Path, functions: str, busy_with: str
) -> None:
    runner = served.start_runner(HEADRACE_FUNCTIONS=functions)
    answered(lambda: served.call("note", {"path": "/dev/null"}), 200)
    family = runner.descendants()
    assert len(family) >= 2  # the fork server and an executor

    inputs = {"stuck": {"seconds": 30}, "note_alone": {"path": str(tmp_path / "notes"), "seconds": 30}}
    with served.calling(*[(name, inputs[name]) for name in [busy_with] if name]) as running:
        if running:
            eventually(lambda: is_running(served), "it runs")
        runner.signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=2)
        assert alive == []
        for future in running:
            problem(future.result(), 502, "worker-lost")


def is_running(served: Site) -> bool:
    return served.metric(served["runner"], "headrace_runner_running_calls", slots="(main)") == 1
