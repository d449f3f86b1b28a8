"""Executors come after all else, and only they and what functions start do."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path

import psutil
import pytest
from child import child
from harness.site import eventually

from gpu_runner.executor import priority

GROUPS_SESSIONS = Path("/proc/sys/kernel/sched_autogroup_enabled")
OWN_GROUP = Path("/proc/self/autogroup")  # empty in the kernel's own group, as in some containers


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
    not GROUPS_SESSIONS.exists() or GROUPS_SESSIONS.read_text().strip() != "1" or not OWN_GROUP.read_text(),
    reason="the kernel's scheduler doesn't group by session",
)
def test_an_executor_is_nice_to_other_sessions_and_the_fork_servers_stays_as_it_is() -> None:
    before = nice_of_session(os.getpid())
    with child("nice_functions", nice=7) as executor:
        assert os.getsid(executor.pid) == executor.pid
        eventually(lambda: nice_of_session(executor.pid) == 7, "the kernel takes one change in 0.1 s")
        assert nice_of_session(psutil.Process(executor.pid).ppid()) == before
        assert nice_of_session(os.getpid()) == before


def test_one_that_is_not_to_be_nice_leads_a_group_in_the_runners_session() -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    with child("nice_functions") as executor:
        assert executor.value("niceness") == ours
        assert nice_of_threads(executor.pid) == {ours}
        assert os.getpgid(executor.pid) == executor.pid != os.getsid(executor.pid)


class Autogroup:
    """The kernel's file, which takes no change at first, or can't even be opened."""

    def __init__(self, *errors: OSError, opened: OSError | None = None) -> None:
        self.errors = list(errors)
        self.opened = opened
        self.taken: list[str] = []
        self.has_taken = threading.Event()

    def open(self, mode: str) -> contextlib.AbstractContextManager[None]:
        if self.opened is not None:
            raise self.opened
        return contextlib.nullcontext()

    def write_text(self, text: str) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.taken.append(text)
        self.has_taken.set()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[object]:
    """What would change this process is noted only."""
    made: list[object] = []
    caplog.set_level(logging.WARNING, priority.__name__)
    monkeypatch.setattr(os, "setpgid", lambda *_: made.append("setpgid"))
    monkeypatch.setattr(priority, "_AGAIN_S", 0)
    monkeypatch.setattr(os, "setsid", lambda: made.append("setsid"))
    monkeypatch.setattr(os, "nice", made.append)
    return made


def test_a_kernel_that_takes_one_change_at_a_time_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, calls: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    autogroup = Autogroup(BlockingIOError(), BlockingIOError())
    monkeypatch.setattr(priority, "_AUTOGROUP", autogroup)
    priority.lead_group(5)
    assert autogroup.has_taken.wait(20)
    assert (calls, autogroup.taken, caplog.messages) == (["setsid", 5], ["5"], [])


@pytest.mark.parametrize(
    ("opened", "said"), [(FileNotFoundError(), False), (PermissionError("read only"), True)], ids=repr
)
def test_where_no_session_can_be_nice_it_stays_in_the_runners(
    monkeypatch: pytest.MonkeyPatch,
    calls: list[object],
    caplog: pytest.LogCaptureFixture,
    opened: OSError,
    said: bool,
) -> None:
    autogroup = Autogroup(opened=opened)
    monkeypatch.setattr(priority, "_AUTOGROUP", autogroup)
    before = threading.active_count()
    priority.lead_group(5)
    assert (calls, autogroup.taken, threading.active_count()) == (["setpgid", 5], [], before)
    assert ("read only" in caplog.text) == bool(caplog.records) == said


def test_a_change_that_is_refused_is_told_of_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, calls: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(priority, "_AUTOGROUP", Autogroup(PermissionError("not you")))
    before = threading.active_count()
    priority.lead_group(5)
    assert (calls, threading.active_count()) == (["setsid", 5], before)
    assert "not you" in caplog.text


def test_it_is_told_when_the_kernel_never_takes_the_change(
    monkeypatch: pytest.MonkeyPatch, calls: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    autogroup = Autogroup(*[BlockingIOError()] * (1 + priority._TIMES))
    monkeypatch.setattr(priority, "_AUTOGROUP", autogroup)
    priority.lead_group(5)
    eventually(lambda: caplog.records, "a warning")
    assert (autogroup.errors, autogroup.taken) == ([], [])
