"""A function whose calls end about when their holds do, and which says where each start was."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel, Field

from headrace import Budget, Call, function


class Stay(BaseModel):
    """How long, in seconds; a folder for the process of each start; and a number to tell the calls apart."""

    seconds: float = Field(ge=0, le=10)
    folder: str
    number: int


class Stayed(BaseModel):
    number: int
    attempt: int


@function(concurrency=64, budget=Budget(sync=10, queue=60, hard=60))
async def stay(input: Stay, *, call: Call) -> Stayed:
    """Takes so long at its first start, beside all the others."""
    with Path(input.folder, str(input.number)).open("a") as file:
        file.write(f"{os.getpid()}\n")
    await asyncio.sleep(input.seconds if call.attempt == 1 else 0)
    return Stayed(number=input.number, attempt=call.attempt)
