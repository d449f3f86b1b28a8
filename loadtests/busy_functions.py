"""Functions that keep slots busy, and one whose calls are to be answered meanwhile: see `ordinary.py`."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from pydantic import BaseModel, Field

from headrace import Budget, Call, function


class Length(BaseModel):
    """How to spend how many seconds."""

    how: Literal["sleep", "compute"] = "sleep"
    seconds: float = Field(default=0, ge=0, le=600)


_LONG = Budget(sync=5, queue=3600, soft=900, hard=1000)


@function(budget=_LONG, examples=[{"seconds": 1}])
def occupy(input: Length, *, call: Call) -> float:  # noqa: A002 - the platform's word
    """Spend the time in the slot that functions share, unless it is cancelled."""
    began = time.monotonic()
    while (spent := time.monotonic() - began) < input.seconds:
        call.check()
        if input.how == "sleep":
            time.sleep(0.02)
        else:
            _compute(0.02)
    return spent


@function(budget=_LONG, examples=[{"seconds": 1}])
async def linger(input: Length) -> float:  # noqa: A002 - likewise
    """Wait in a slot of its own."""
    await asyncio.sleep(input.seconds)
    return input.seconds


@function(budget=_LONG, examples=[{"seconds": 0}])
async def light(input: Length) -> float:  # noqa: A002 - likewise
    """Wait in a slot of its own, too: other calls of it wait for that."""
    await asyncio.sleep(input.seconds)
    return input.seconds


def _compute(seconds: float) -> None:
    ends_at = time.perf_counter() + seconds
    while time.perf_counter() < ends_at:
        sum(range(1000))
