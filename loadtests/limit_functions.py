"""Functions that only a kill ends, for the load tests."""

from __future__ import annotations

import ctypes

from pydantic import BaseModel

from headrace.sdk import Budget, function


class Nothing(BaseModel):
    """No input."""


@function(budget=Budget(sync=10, soft=0.1, hard=0.2), attempts=1)
def hold(input: Nothing) -> bool:  # noqa: A002 - the platform's word for it
    """Sleeps in C with the interpreter held."""
    ctypes.PyDLL(None).usleep(60_000_000)
    return True


@function()
def ping(input: Nothing) -> bool:  # noqa: A002 - the platform's word for it
    """Answers at once."""
    return True
