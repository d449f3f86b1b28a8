"""A hundred functions that take as long as they are told to, and write down that they were executed.

Each is called for less than a second, so that no runner knows yet how long it takes: a call that is known to
take longer than its hold is a job at once, and never handed over.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from pydantic import BaseModel, Field

from headrace import Budget, Call, function

FUNCTIONS: Final = 100
MOST_AT_ONCE: Final = 64
"""Calls of one function, in one executor."""


class Stay(BaseModel):
    """How long, in seconds; the file of all executions; and a number to tell the calls apart."""

    seconds: float = Field(ge=0, le=10)
    witness: str
    number: int


class Stayed(BaseModel):
    """Which call that was, and by which start."""

    number: int
    attempt: int


async def stay(input: Stay, *, call: Call) -> Stayed:  # noqa: A002 - the platform's word
    """Leave a line, and wait."""
    _append(input.witness, f"{input.number} {call.attempt}\n")
    await asyncio.sleep(input.seconds)
    return Stayed(number=input.number, attempt=call.attempt)


def _append(path: str, line: str) -> None:
    """One write to the end of the file, which no other one can part."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


for _number in range(FUNCTIONS):
    globals()[f"stay_{_number}"] = function(
        name=f"stay_{_number}", concurrency=MOST_AT_ONCE, budget=Budget(sync=10, queue=300, hard=60)
    )(stay)
