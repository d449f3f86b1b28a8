"""Long functions and a short one, which share slots, and one slot is reserved for the short one."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import BaseModel

from headrace import Budget, Call, function

BUDGET = Budget(sync=30, queue=120, soft=90, hard=100)


class Work(BaseModel):
    """A file to which each execution adds its start and end, and one that ends the work when it is there."""

    notes: str = "/dev/null"
    until: str = "/"


@function(budget=BUDGET)
def long(input: Work, *, call: Call) -> int:
    """Goes on until it may end."""
    return _work(input, call)


@function(budget=BUDGET)
def also_long(input: Work, *, call: Call) -> int:
    """Does the same by another name."""
    return _work(input, call)


@function(budget=BUDGET, reserve=1)
def short(input: Work, *, call: Call) -> int:
    """Does the same, and may nearly always end at once."""
    return _work(input, call)


def _work(input: Work, call: Call) -> int:
    with Path(input.notes).open("a", buffering=1) as notes:
        notes.write(f"start {call.job_id}\n")
        while not Path(input.until).exists():
            call.check()
            time.sleep(0.01)
        notes.write(f"end {call.job_id}\n")
    return call.attempt
