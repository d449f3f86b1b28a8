"""Functions for tests: each does one thing that a site has to cope with. No model, no torch."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from headrace import (
    Budget,
    Call,
    InvalidInput,
    Limits,
    PermanentError,
    TransientError,
    function,
)
from headrace.errors import CallStopped


class Message(BaseModel):
    """What `callcost.py`'s body holds, and a little less."""

    text: str = Field(max_length=10_000)
    user: str = ""
    top_k: int = 0
    scores: list[float] = []
    flags: dict[str, bool] = {}


class Echo(BaseModel):
    text: str
    n: int
    scores: list[float]


class Seconds(BaseModel):
    seconds: float = Field(ge=0, le=600)


class Length(BaseModel):
    characters: int = Field(ge=0)


class Nothing(BaseModel):
    pass


class Note(BaseModel):
    """A file that tells a test what was executed: each start adds a line."""

    path: str
    mark: str = ""
    seconds: float = 0

    def add(self, text: str) -> None:
        with Path(self.path).open("a") as file:
            file.write(f"{text}\n")


class Texts(BaseModel):
    """A list bounded as `embed`'s is."""

    texts: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=32_768)]], Field(min_length=1, max_length=256)
    ]


class Witness(BaseModel):
    pid: int
    attempt: int
    job_id: str


@function(limits=Limits(input="16KiB"), examples=[{"text": "hello", "top_k": 3, "scores": [0.5]}])
def echo(input: Message) -> Echo:
    """Answers what it was sent."""
    return Echo(text=input.text, n=input.top_k, scores=input.scores)


@function()
def count(input: Texts) -> int:
    """Counts texts."""
    return len(input.texts)


@function(budget=Budget(sync=5, hard=5))
def nap(input: Seconds, *, call: Call) -> Witness:
    """Sleeps, and looks up every ten milliseconds whether it should stop."""
    end = time.monotonic() + input.seconds
    while (left := end - time.monotonic()) > 0:
        call.check()
        time.sleep(min(0.01, left))
    return Witness(pid=os.getpid(), attempt=call.attempt, job_id=call.job_id)


@function(budget=Budget(sync=0.5, hard=30))
def long_nap(input: Seconds, *, call: Call) -> Witness:
    """Sleeps longer than its connection may be held."""
    return nap.fn(input, call=call)


@function(budget=Budget(sync=10, soft=0.3, hard=0.6), attempts=1)
def stuck(input: Seconds) -> Nothing:
    """Waits in C with the interpreter held, through all signals: nothing but a kill ends it."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    until = (ctypes.c_long * 2)(int(time.time() + input.seconds), 0)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_timedlock(mutex, until)  # it is this thread's own: nobody unlocks it
    return Nothing()


@function(budget=Budget(sync=10, soft=0.2, hard=5))
def obedient(input: Nothing, *, call: Call) -> Nothing:
    """Works until its soft limit says stop."""
    while True:
        call.check()
        time.sleep(0.01)


@function(attempts=2)
def dies_once(input: Nothing, *, call: Call) -> Witness:
    """Takes its process with it at the first attempt."""
    if call.attempt == 1:
        os._exit(3)
    return Witness(pid=os.getpid(), attempt=call.attempt, job_id=call.job_id)


@function(attempts=2)
def dies(input: Nothing) -> Nothing:
    """Takes its process with it each time."""
    os._exit(3)


@function(attempts=1)
def dies_at_once(input: Nothing) -> Nothing:
    """Takes its process with it and may not be started again."""
    os._exit(3)


@function()
def refuses(input: Nothing) -> Nothing:
    """Finds its input unfit."""
    raise InvalidInput("the moon is not in its phase", path="/phase")


@function()
def fails(input: Nothing) -> Nothing:
    """Fails for good and says why."""
    raise PermanentError("the archive has burnt down")


@function()
def breaks(input: Nothing) -> Nothing:
    """Raises what nobody expected, with a secret in its message."""
    raise RuntimeError("secret-in-a-message")


@function()
def leaves(input: Nothing) -> Nothing:
    """Tries to end the process by the front door."""
    raise SystemExit(7)


@function(attempts=3)
def recovers(input: Nothing, *, call: Call) -> Witness:
    """Fails for now, twice."""
    if call.attempt < 3:
        raise TransientError("not yet")
    return Witness(pid=os.getpid(), attempt=call.attempt, job_id=call.job_id)


@function(attempts=2)
def swells(input: Nothing, *, call: Call) -> Witness:
    """Runs out of memory, once."""
    if call.attempt == 1:
        raise MemoryError
    return Witness(pid=os.getpid(), attempt=call.attempt, job_id=call.job_id)


@function(attempts=2)
def never_recovers(input: Nothing) -> Nothing:
    """Fails for now, always."""
    raise TransientError("not yet")


@function(limits=Limits(output="1KiB"))
def talks(input: Length) -> str:
    """Answers with as many characters as it was asked for."""
    return "x" * input.characters


@function()
def lies(input: Nothing) -> Witness:
    """Returns something else than it declared."""
    return "not a witness"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("the number is odd")
        return number


@function()
def halve(input: Even) -> int:
    """Has a rule that no schema can hold."""
    return input.number // 2


@function(concurrency=16, attempts=1)
async def wait_together(input: Seconds, *, call: Call) -> Witness:
    """Waits beside others."""
    await asyncio.sleep(input.seconds)
    return Witness(pid=os.getpid(), attempt=call.attempt, job_id=call.job_id)


@function(concurrency=16, attempts=1)
async def note_once(input: Note, *, call: Call) -> Witness:
    """Notes its start, waits, and may not be started again."""
    input.add(input.mark)
    await asyncio.sleep(input.seconds)
    return Witness(pid=os.getpid(), attempt=call.attempt, job_id=call.job_id)


@function(concurrency=16, attempts=2)
async def note_twice(input: Note, *, call: Call) -> Witness:
    """Does the same, and may be started twice."""
    return await note_once.fn(input, call=call)


@function()
def note(input: Note) -> Nothing:
    """Notes its start and takes its time."""
    input.add(input.mark)
    time.sleep(input.seconds)
    return Nothing()


@function(attempts=1)
def note_alone(input: Note) -> Nothing:
    """Does the same, and may not be started again."""
    return note.fn(input)


@function(budget=Budget(sync=20, hard=20))
def watched(input: Note, *, call: Call) -> Nothing:
    """Notes when it is told to stop."""
    input.add("started")
    try:
        while True:
            call.check()
            time.sleep(0.01)
    except CallStopped:
        input.add("stopped")
        raise


@function(budget=Budget(sync=20, hard=20))
async def watched_async(input: Note) -> Nothing:
    """Does the same in an event loop."""
    input.add("started")
    try:
        await asyncio.sleep(20)
    except asyncio.CancelledError:
        input.add("stopped")
        raise
    return Nothing()
