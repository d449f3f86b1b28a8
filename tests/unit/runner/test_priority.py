"""Executors come after all else, and only they and what functions start do."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil
import pytest
from child import child

from gpu_runner.executor import priority

GROUPS_SESSIONS = Path("/proc/sys/kernel/sched_autogroup_enabled")


def nice_of_threads(pid: int) -> set[int]:
    found = psutil.Process(pid).threads()
    assert len(found) >= 3, "it has a loop, and a thread that reads"
    return {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in found}


def nice_of_session(pid: int) -> int:
    """`/autogroup-123 nice 7`."""
    return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])


def test_all_threads_of_an_executor_and_what_functions_start_are_nice_and_nothing_else() -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    with child("nice_functions", nice=7) as executor:
        assert executor.value("niceness") == min(ours + 7, 19)
        assert nice_of_threads(executor.pid) == {min(ours + 7, 19)}
        assert os.getpgid(executor.pid) == executor.pid  # it is killed with its group
        server = psutil.Process(executor.pid).ppid()
        assert os.getpriority(os.PRIO_PROCESS, server) == ours == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.skipif(
    not GROUPS_SESSIONS.exists() or GROUPS_SESSIONS.read_text().strip() != "1",
    reason="the kernel's scheduler doesn't group by session",
)
def test_an_executor_is_nice_to_other_sessions_and_the_fork_servers_stays_as_it_is() -> None:
    before = nice_of_session(os.getpid())
    with child("nice_functions", nice=7) as executor:
        assert os.getsid(executor.pid) == executor.pid
        assert nice_of_session(executor.pid) == 7
        assert nice_of_session(psutil.Process(executor.pid).ppid()) == before
        assert nice_of_session(os.getpid()) == before


def test_one_that_is_not_to_be_nice_leads_a_group_in_the_runners_session() -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    with child("nice_functions") as executor:
        assert executor.value("niceness") == ours
        assert nice_of_threads(executor.pid) == {ours}
        assert os.getpgid(executor.pid) == executor.pid != os.getsid(executor.pid)


class Autogroup:
    """The kernel's file, which takes no change at first."""

    def __init__(self, *errors: OSError) -> None:
        self.errors = list(errors)
        self.taken: list[str] = []
        self.has_taken = threading.Event()

    def write_text(self, text: str) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.taken.append(text)
        self.has_taken.set()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What would change this process is noted only."""
    made: list[object] = []
    monkeypatch.setattr(priority, "_AGAIN_S", 0)
    monkeypatch.setattr(os, "setsid", lambda: made.append("setsid"))
    monkeypatch.setattr(os, "nice", made.append)
    return made


def test_a_kernel_that_takes_one_change_at_a_time_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, calls: list[object]
) -> None:
    autogroup = Autogroup(BlockingIOError(), BlockingIOError())
    monkeypatch.setattr(priority, "_AUTOGROUP", autogroup)
    priority.lead_group(5)
    assert autogroup.has_taken.wait(20)
    assert (calls, autogroup.taken) == (["setsid", 5], ["5"])


def test_a_kernel_without_such_groups_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, calls: list[object]
) -> None:
    autogroup = Autogroup(FileNotFoundError())
    monkeypatch.setattr(priority, "_AUTOGROUP", autogroup)
    before = threading.active_count()
    priority.lead_group(5)
    assert (calls, autogroup.taken, threading.active_count()) == (["setsid", 5], [], before)
