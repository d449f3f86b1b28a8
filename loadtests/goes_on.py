"""A function that goes on until it is ended, and notes when that was."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from headrace import Budget, Call, function


class Work(BaseModel):
    """How to spend the time, and the file in which start and end are noted, as `time.monotonic()`."""

    how: Literal["checks", "sleeps", "computes"]
    path: str


@function(budget=Budget(sync=55, hard=60), examples=[{"how": "checks", "path": "/dev/null"}])
def goes_on(input: Work, *, call: Call) -> float:  # noqa: A002 - the platform's word
    """Go on until something ends it: a check every 10 ms, a single long sleep, or pure Python."""
    began = time.monotonic()
    with Path(input.path).open("a", buffering=1) as notes:
        notes.write(f"{began}\n")
        try:
            _go_on(input.how, call)
        finally:
            notes.write(f"{time.monotonic()}\n")
    return began


def _go_on(how: str, call: Call) -> None:
    steps = 0
    while how == "checks":
        call.check()
        time.sleep(0.01)
    while how == "computes":
        steps += 1
    time.sleep(50)
