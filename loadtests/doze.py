"""A function that takes as long as it is told to, four at once, and next to no CPU time."""

from __future__ import annotations

import asyncio
from typing import Final

from pydantic import BaseModel, Field

from headrace import Budget, function

SLOTS: Final = 4
QUEUE_S: Final = 10.0
"""The longest wait for a start. It bounds what waits: a job that would wait for over eight tenths of it is
refused, so there are up to eight seconds of work in line, and sixteen jobs for each slot at half a second."""


class Length(BaseModel):
    """How long, in seconds."""

    seconds: float = Field(ge=0, le=60)


@function(concurrency=SLOTS, budget=Budget(queue=QUEUE_S, hard=90), examples=[{"seconds": 0.5}])
async def doze(input: Length) -> Length:  # noqa: A002 - the platform's word
    """Wait."""
    await asyncio.sleep(input.seconds)
    return input
