"""Functions that run until they are let go: what a call becomes doesn't hang on how fast the machine is."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic import BaseModel

from headrace import Budget, Call, function

_LONGEST_S = 50.0


class Gate(BaseModel):
    """A folder: each start adds a file of its mark, and goes on until there is one named `open`."""

    folder: str
    mark: str = "a"


class Passed(BaseModel):
    mark: str
    attempt: int
    job_id: str


@function(budget=Budget(sync=30, queue=50, soft=55, hard=60), attempts=1)
def gated(input: Gate, *, call: Call) -> Passed:
    """Waits for its gate."""
    folder = Path(input.folder)
    with (folder / input.mark).open("a") as file:
        file.write(f"{call.attempt}\n")
    ends_at = time.monotonic() + _LONGEST_S
    while not (folder / "open").exists() and time.monotonic() < ends_at:
        call.check()
        time.sleep(0.005)
    return Passed(mark=input.mark, attempt=call.attempt, job_id=call.job_id)


@function(budget=Budget(sync=0.6, queue=50, soft=55, hard=60), attempts=1)
def briefly_held(input: Gate, *, call: Call) -> Passed:
    """The same, but its connection is held briefly."""
    return gated.fn(input, call=call)


@function(budget=Budget(sync=0.6, queue=50, soft=55, hard=60), attempts=2)
def dies_first(input: Gate, *, call: Call) -> Passed:
    """The same; its first start takes the process along once the gate is open."""
    passed = gated.fn(input, call=call)
    if call.attempt == 1:
        os._exit(3)
    return passed


class Pause(BaseModel):
    seconds: float = 0.0


@function(budget=Budget(sync=30, hard=60))
def paused(input: Pause) -> float:
    """Takes so long."""
    time.sleep(input.seconds)
    return input.seconds
