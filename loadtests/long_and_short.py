"""A long function, and a short one for which a slot is reserved."""

from __future__ import annotations

import time
from typing import Literal

from pydantic import BaseModel, Field

from headrace import Budget, function

LONG_S = 20.0
SHORT_S = 0.02


class Length(BaseModel):
    """How to spend how many seconds."""

    how: Literal["sleep", "compute"] = "sleep"
    seconds: float = Field(default=0, ge=0, le=60)


@function(budget=Budget(sync=55, queue=3600, soft=50, hard=55), examples=[{"seconds": 20}])
def long(input: Length) -> float:  # noqa: A002 - the platform's word
    """Take long, in one of the slots that all share."""
    return spend(input)


@function(budget=Budget(sync=10, hard=30), reserve=1, examples=[{"seconds": 0.02}])
def short(input: Length) -> float:  # noqa: A002 - likewise
    """Take a moment. One slot is reserved for it."""
    return spend(input)


def spend(length: Length) -> float:
    """Spend the time, and tell how much it was."""
    began = time.monotonic()
    if length.how == "sleep":
        time.sleep(length.seconds)
    while time.monotonic() < began + length.seconds:
        pass
    return time.monotonic() - began
