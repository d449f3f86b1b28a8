"""A function that takes as long as it is told to, and next to no CPU time, in a slot that functions share."""

from __future__ import annotations

import time

from pydantic import BaseModel, Field

from headrace import Budget, function


class Length(BaseModel):
    """How long, in seconds."""

    seconds: float = Field(ge=0, le=10)


@function(budget=Budget(sync=50, queue=300, hard=60), examples=[{"seconds": 0.05}])
def slow(input: Length) -> Length:  # noqa: A002 - the platform's word
    """Sleep."""
    time.sleep(input.seconds)
    return input
