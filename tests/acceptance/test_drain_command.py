"""`headrace drain`, as its user sees it."""

from __future__ import annotations

import json
import os
import signal

import pytest
from harness.up import Folder, session_leaders


def runner_of(folder: Folder) -> str:
    (runner,) = json.loads(folder.run("status", "--json").stdout)["runners"]
    return runner["runner_id"]


def test_a_drained_runner_leaves_and_stays_away(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        runner_id = runner_of(folder)
        refused = folder.run("drain", "zz")
        assert refused.returncode == 1
        assert f"there is no runner 'zz'; those that live: {runner_id}" in refused.stderr

        drained = folder.run("drain", runner_id[:8], "--wait")
        assert drained.returncode == 0, drained.stderr
        lines = drained.stdout.splitlines()
        name = f"runner ..{runner_id[-8:]}"
        assert (lines[0], lines[-1]) == (f"{name} drains; nothing runs there", f"{name} has left")
        assert "stays away until the next start" in up.until("runner-1 was drained")
        assert "no runner lives" in folder.run("drain", runner_id).stderr
        assert runner_id in folder.run("audit", "--action", "runner.drain").stdout
        assert up.stop() == 0


@pytest.mark.slow
def test_a_runner_that_does_not_answer_is_told_of_and_drains_when_it_comes_back(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        runner_id = runner_of(folder)
        (process,) = session_leaders(folder, "-m gpu_runner ")  # not its warden
        os.kill(process, signal.SIGSTOP)
        silent = folder.run("drain", runner_id)
        assert silent.returncode == 1
        assert f"runner ..{runner_id[-8:]} hasn't answered within 5 s; it " in silent.stderr
        assert "end its process by SIGKILL" in silent.stderr
        os.kill(process, signal.SIGCONT)
        up.until("runner-1 was drained")
        assert up.stop() == 0
