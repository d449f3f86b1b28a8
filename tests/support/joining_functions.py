"""Functions whose calls are joined; each run of a body is noted in a file, with the numbers in it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from pydantic import BaseModel, field_validator

from headrace import Batch, Budget, Call, InvalidInput, function

BUDGET = Budget(sync=60, queue=120, soft=20, hard=30)


class Entry(BaseModel):
    """A number to tell the calls apart, where to note it, and how to go about it."""

    number: int
    notes: str = "/dev/null"
    how: str = ""

    @field_validator("how")
    @classmethod
    def not_odd(cls, how: str) -> str:
        if how == "odd":
            raise ValueError("too odd")
        return how


class Noted(BaseModel):
    number: int
    attempt: int
    together: int


@function(batch=Batch(max_cost=16, max_wait=0.01), attempts=2, budget=BUDGET)
def join(inputs: list[Entry], *, calls: list[Call]) -> list[Noted | Exception]:
    """Notes them; what is bad fails alone, and what kills ends the process."""
    _note(inputs)
    time.sleep(0.03)
    if any(entry.how == "kill" for entry in inputs):
        os.kill(os.getpid(), signal.SIGKILL)
    return [
        InvalidInput("this one is bad")
        if entry.how == "bad"
        else Noted(number=entry.number, attempt=call.attempt, together=len(inputs))
        for entry, call in zip(inputs, calls, strict=True)
    ]


@function(batch=Batch(max_cost=16), attempts=2, budget=Budget(sync=60, queue=120, soft=0.5, hard=1))
def join_briefly(inputs: list[Entry]) -> list[int]:
    """Goes past its hard limit where one of them wants it to."""
    _note(inputs)
    time.sleep(0.1)
    while any(entry.how == "hang" for entry in inputs):
        try:
            time.sleep(60)
        except BaseException:
            continue
    return [entry.number for entry in inputs]


def _note(inputs: list[Entry]) -> None:
    with Path(inputs[0].notes).open("a") as notes:
        notes.write(" ".join(str(entry.number) for entry in inputs) + "\n")
