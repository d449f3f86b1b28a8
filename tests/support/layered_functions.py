"""Functions with the budgets of the example in docs/functions.md, divided by 60. No model, no torch."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import BaseModel

from headrace import Budget, Call, function

BUDGET = Budget(sync=1, queue=2, soft=2.25, hard=2.5, margin=0.25)


class Work(BaseModel):
    """A file to which each start adds a line, and one that ends the work when it is there."""

    notes: str
    until: str


@function(budget=BUDGET, attempts=2)
def deaf(input: Work, *, call: Call) -> int:
    """Hears of no limit: the function never asks whether it should stop."""
    with Path(input.notes).open("a") as notes:
        notes.write(f"{call.job_id}\n")
    while not Path(input.until).exists():
        time.sleep(0.01)
    return call.attempt
