"""Functions that are run as jobs by a runner under test. No model, no torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from headrace import Budget, Call, PermanentError, function


class Marked(BaseModel):
    """A file to which each start adds its attempt; and how long to take."""

    path: str
    seconds: float = 0.0

    def add(self, words: str) -> None:
        with Path(self.path).open("a") as file:
            file.write(f"{words}\n")


class Words(BaseModel):
    words: str = ""


class Numbers(Marked):
    """So many, from when the file `go` is there."""

    go: str
    count: int


@function(attempts=2, budget=Budget(sync=5, hard=30))
def marked(input: Marked, *, call: Call) -> int:
    """Notes its start, and ends when it is told to."""
    input.add(f"start {call.attempt}")
    end = time.monotonic() + input.seconds
    while time.monotonic() < end:
        call.check()
        time.sleep(0.005)
    return call.attempt


@function(attempts=2, budget=Budget(sync=5, soft=30, hard=30))
def deaf(input: Marked, *, call: Call) -> int:
    """Notes its start, and hears nothing until it has noted its end."""
    input.add(f"start {call.attempt}")
    time.sleep(input.seconds)
    input.add(f"end {call.attempt}")
    return call.attempt


@function(budget=Budget(sync=5, hard=30))
def reports(input: Marked, *, call: Call) -> str:
    """Tells how far it is, far more often than anybody wants to know."""
    end = time.monotonic() + input.seconds
    step = 0
    while time.monotonic() < end:
        step += 1
        call.progress(0.5, f"step {step}\x00")
        time.sleep(0.001)
    call.progress(1.0, "done")
    return f"{step} steps"


@function(collect=list, budget=Budget(sync=5, hard=30))
def yields(input: Numbers, *, call: Call) -> Iterator[int]:
    """Notes each number before it yields it."""
    input.add("start")
    while not Path(input.go).exists():
        call.check()
        time.sleep(0.005)
    for number in range(input.count):
        input.add(str(number))
        yield number


@function()
def says(input: Words) -> str:
    """Answers with the words."""
    return input.words


@function()
def fails_with(input: Words) -> str:
    """Fails with the words."""
    raise PermanentError(input.words)


@function(attempts=1)
def reports_its_end(input: Words, *, call: Call) -> str:
    """Says that it is done, and is."""
    call.progress(0.5, "half")
    call.progress(1.0, input.words)
    return input.words


@function(attempts=2)
def hungry(input: Words) -> str:
    """Never finds memory enough."""
    raise MemoryError
