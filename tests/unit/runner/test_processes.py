"""What the kernel tells of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from harness.site import eventually

from gpu_runner.frames import INTERRUPT
from gpu_runner.operators.processes import ProcessFacts, look_at

SPINS = "while True: pass"
SLEEPS = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(60)"
IGNORES = f"import signal, time; signal.signal({int(INTERRUPT)}, signal.SIG_IGN); time.sleep(60)"
TWO = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); time.sleep(60)"


def becomes(pid: int, wanted: Callable[[ProcessFacts], bool]) -> ProcessFacts:
    """How a process stands, as soon as it does so."""

    def look() -> ProcessFacts | None:
        facts = look_at(pid)
        return facts if facts is not None and wanted(facts) else None

    return eventually(look, "the process stands so")


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        (SPINS, lambda facts: facts.state == "R" and facts.cpu_s > 0.05),
        (SLEEPS, lambda facts: facts.state == "S" and not facts.is_deaf_to(INTERRUPT)),
        (DEAF, lambda facts: facts.is_deaf_to(INTERRUPT) and facts.is_deaf_to(signal.SIGTERM)),
        (IGNORES, lambda facts: facts.is_deaf_to(INTERRUPT) and not facts.is_deaf_to(signal.SIGTERM)),
        (TWO, lambda facts: facts.threads == 2),
    ],
)
def test_a_process_is_seen_as_it_stands(program: str, wanted: Callable[[ProcessFacts], bool]) -> None:
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            becomes(process.pid, wanted)
        finally:
            process.kill()


def test_a_stopped_process_and_one_that_has_ended_are_told_apart() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPS]) as process:
        process.send_signal(signal.SIGSTOP)
        assert becomes(process.pid, lambda facts: facts.state == "T").threads == 1
        process.kill()
        becomes(process.pid, lambda facts: facts.state == "Z")
    assert look_at(process.pid) is None


def test_the_wait_is_named_where_the_kernel_tells() -> None:
    facts = look_at(os.getpid())
    assert facts is not None
    assert facts.wchan == "" or facts.wchan.isprintable()
    assert facts.wchan != "0"
