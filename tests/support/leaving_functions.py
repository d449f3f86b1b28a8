"""Functions that start processes which outlive them, in every way there is, and note their pids in a file."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

from pydantic import BaseModel

from headrace import Budget, Call, function

LEFT = 4
"""How many each call leaves."""


class Place(BaseModel):
    path: str
    seconds: float = 0
    is_clean: bool = True
    """Whether what leaves the group leaves its environment, too."""


class Left(BaseModel):
    attempt: int
    alive: list[int] = []


@function(budget=Budget(sync=20, queue=60, hard=60), attempts=2)
def leaves_and_hangs(input: Place, *, call: Call) -> Left:
    """At the first start it then sleeps in C, holding the interpreter; a second one tells who is left."""
    if call.attempt > 1:
        return Left(attempt=call.attempt, alive=[pid for pid in pids(input.path) if is_alive(pid)])
    note(input.path, os.getpid())
    leave(input)
    ctypes.PyDLL(None).usleep(int(input.seconds * 1e6))
    return Left(attempt=call.attempt)


@function(budget=Budget(sync=20, hard=30), attempts=1)
def leaves(input: Place, *, call: Call) -> int:
    """Returns, and leaves them behind; answers with its own pid."""
    leave(input)
    return os.getpid()


@function(budget=Budget(sync=20, hard=60), attempts=1)
def waits(input: Place) -> int:
    """Waits for a file; answers with its own pid."""
    while not Path(input.path).exists():
        time.sleep(0.01)
    return os.getpid()


@function(budget=Budget(sync=20, hard=30), attempts=1)
def leaves_and_dies(input: Place) -> int:
    """Leaves them behind and its process with them."""
    leave(input)
    os._exit(3)


def leave(place: Place) -> None:
    """A child in the group, one that has left it, a forked one that blocks all signals, and an orphan."""
    path = place.path
    kept = {"PATH": "/usr/bin:/bin"} if place.is_clean else dict(os.environ)
    note(path, subprocess.Popen(["sleep", "600"]).pid)
    note(path, subprocess.Popen(["sleep", "600"], start_new_session=True, env=kept).pid)
    if (pid := os.fork()) == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        time.sleep(600)
        os._exit(0)
    note(path, pid)
    # The shell ends at once. Its child has a session of its own, and no parent.
    command = ["sh", "-c", 'setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $! >> "$0"', path]
    subprocess.run(command, env=kept, check=True)


def note(path: str, pid: int) -> None:
    with Path(path).open("a") as file:
        file.write(f"{pid}\n")


def pids(path: str) -> list[int]:
    """Those that were noted."""
    return [int(line) for line in Path(path).read_text().split()] if Path(path).exists() else []


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
