"""How `headrace up` ends, and what it does when a process of its own does."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from harness.up import (
    LAST_LINE,
    Folder,
    echo,
    postmaster_pid,
    session_leaders,
    wait_for_all,
    wait_until_served,
)

from headrace.embedded import EmbeddedPostgres


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("starting Postgres", marks=pytest.mark.slow),
        "starting the gateway",
        pytest.param("loading models", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_during_the_start_leaves_nothing_behind(folder: Folder, moment: str) -> None:
    with folder.up() as up:
        up.until(moment)
        began = time.monotonic()
        assert up.stop() == 0
        assert time.monotonic() - began < 15
        assert up.said.endswith("stopped; data stay in .headrace\n")
        assert "Traceback" not in up.said
        assert folder.processes() == []


@pytest.mark.parametrize("moment", [pytest.param("loading models", marks=pytest.mark.slow), LAST_LINE])
def test_a_closed_terminal_stops_everything_in_order(folder: Folder, moment: str) -> None:
    ours, theirs = pty.openpty()
    # The first terminal that the leader of a new session opens becomes the one that controls it.
    script = 'exec "$@" <"$TERMINAL" >"$TERMINAL" 2>&1'
    with subprocess.Popen(
        ["sh", "-c", script, "sh", sys.executable, "-m", "headrace", "up"],
        cwd=folder.path,
        env=folder.environment | {"TERMINAL": os.ttyname(theirs), "TERM": "xterm", "COLUMNS": "200"},
        start_new_session=True,
    ) as process:
        try:
            said = b""
            while moment.encode() not in said:
                said += os.read(ours, 2**16)
            os.close(theirs)
            os.close(ours)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert folder.processes() == []
    assert not (folder.home / "postgres" / "postmaster.pid").exists()
    if moment == LAST_LINE:
        assert "stopping: taking no new calls" in (folder.home / "logs" / "runner-1.log").read_text()


def test_a_killed_up_takes_gateway_and_runner_with_it_and_the_next_one_takes_over(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        key = up.key
        children = [*folder.processes("gateway"), *folder.processes("gpu_runner")]
        watched = [os.pidfd_open(pid) for pid in children]
        up.process.kill()
        wait_for_all(watched)
    assert [*folder.processes("gateway"), *folder.processes("gpu_runner")] == []
    for command in (["status"], ["keys", "list"], ["owners"], ["functions"], ["migrate"]):
        assert folder.run(*command).returncode == 0
    assert EmbeddedPostgres(folder.home).is_running()
    assert "no runner lives: start one with `headrace up` or `headrace runner`" in folder.run("status").stdout

    with folder.up() as up:
        up.ready()
        assert up.key == key
        assert echo(folder, key)["text"] == "x"
        assert up.stop() == 0
    assert not EmbeddedPostgres(folder.home).is_running()


def test_a_lost_process_is_started_again(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        (runner,) = session_leaders(folder, "-m gpu_runner ")
        os.kill(runner, signal.SIGKILL)
        assert "runner-1 ended (killed by SIGKILL)" in up.until("runner-1 ended")
        (gateway,) = session_leaders(folder, "headrace gateway")
        os.kill(gateway, signal.SIGKILL)
        assert "gateway ended (killed by SIGKILL)" in up.until("gateway ended")
        os.kill(postmaster_pid(folder), signal.SIGKILL)
        up.until("Postgres ended")
        wait_until_served(folder, up.key)
        assert up.stop() == 0


def test_a_second_ctrl_c_kills(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        for pid in [*session_leaders(folder, "-m gpu_runner "), *session_leaders(folder, "headrace gateway")]:
            os.kill(pid, signal.SIGSTOP)  # such a process ends neither in order nor soon
        os.killpg(up.pid, signal.SIGINT)
        up.until("stopping")
        assert up.stop() == 0
