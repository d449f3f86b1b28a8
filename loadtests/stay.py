"""A function that stays in its process until that is killed, and says when it was started again."""

from __future__ import annotations

import os
import time

from pydantic import BaseModel

from headrace import Budget, Call, function


class Nothing(BaseModel):
    """No input."""


class Start(BaseModel):
    """Which start it was, and when, in seconds since 1970."""

    attempt: int
    at: float


@function(attempts=2, budget=Budget(soft=60, hard=60), examples=[{}])
def stay(input: Nothing, *, call: Call) -> Start:  # noqa: A002 - the platform's word, and no need of it
    """Tell the process, and stay there; the second time, tell the time."""
    at = time.time()
    while call.attempt == 1:
        call.progress(0.0, str(os.getpid()))
        call.check()
        time.sleep(0.1)
    return Start(attempt=call.attempt, at=at)
