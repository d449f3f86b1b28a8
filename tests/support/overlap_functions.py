"""A function that notes who executes it when, and which of its other processes are still there then."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from headrace import Budget, Call, function

SOFT_S = 0.3
HARD_S = 0.9

How = Literal["ends", "checks", "sleeps", "is_deaf", "holds", "exits"]


class Work(BaseModel):
    """What to do, a number to tell the calls apart, and the file of all notes."""

    how: How
    number: int
    path: str


@function(budget=Budget(sync=30, queue=240, soft=SOFT_S, hard=HARD_S), attempts=2)
def lonely(input: Work, *, call: Call) -> int:
    """Takes a moment, or goes on until it is ended, by fair means or foul."""
    with Path(input.path).open("a", buffering=1) as notes:  # a line is one write, and they are in order
        alive = [pid for pid in _seen(input.path) if _runs(pid)]
        name = f"{input.number}/{call.attempt}"
        notes.write(f"start {name} {os.getpid()} {','.join(map(str, alive))}\n")
        try:
            _work(input.how, call)
        finally:
            notes.write(f"end {name} {os.getpid()}\n")
    return input.number


def _work(how: How, call: Call) -> None:
    match how:
        case "ends":
            time.sleep(0.01)
        case "checks":
            while True:
                call.check()
                time.sleep(0.01)
        case "sleeps":
            time.sleep(30)
        case "is_deaf":
            while True:
                try:
                    time.sleep(30)
                except BaseException:
                    continue
        case "holds":
            sum(itertools.repeat(0))  # in C, which never lets the interpreter go
        case "exits":
            os._exit(3)


def _seen(path: str) -> set[int]:
    """Other processes that have started something."""
    pids = {int(line.split()[2]) for line in Path(path).read_text().splitlines() if line.startswith("start")}
    return pids - {os.getpid()}


def _runs(pid: int) -> bool:
    """Whether the process is there; a zombie executes nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
