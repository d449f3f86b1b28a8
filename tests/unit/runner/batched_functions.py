"""Batched functions that fail as a whole or in parts, and ones that wait until they are stopped."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, field_serializer, field_validator

from headrace import Batch, Call, InvalidInput, Limits, PermanentError, TransientError, function
from headrace.errors import CallStopped

BATCH = Batch(max_cost=64)
LONG_S = 60.0


class Ask(BaseModel):
    text: str = ""
    how: str = ""
    note: str = "/dev/null"

    @field_validator("text")
    @classmethod
    def no_tabs(cls, text: str) -> str:
        if "\t" in text:
            raise ValueError("no tabs")
        return text

    def say(self, words: str) -> None:
        with Path(self.note).open("a") as file:
            file.write(f"{words}\n")


def upper(inputs: list[Ask]) -> list[str]:
    return [one.text.upper() for one in inputs]


def fail(inputs: list[Ask]) -> None:
    """Fail for all, if that is asked for one of them."""
    hows = {one.how for one in inputs}
    if "raise" in hows:
        raise RuntimeError("out of order")
    if "refuse" in hows:
        raise InvalidInput("a secret of somebody")
    if "transient" in hows:
        raise TransientError("later")
    if "large" in hows and len(inputs) > 1:
        raise MemoryError


def output_for(ask: Ask) -> Any:
    """Fail for one, if that is asked for it."""
    outputs: dict[str, Any] = {
        "permanent": PermanentError("not this one"),
        "later": TransientError("later"),
        "bug": KeyError("a secret"),
        "invalid": InvalidInput("too odd", path="/text"),
        "number": 7,
        "long": "x" * 2000,
    }
    return outputs.get(ask.how, ask.text.upper())


def wait(inputs: list[Ask], calls: list[Call]) -> None:
    """Until the first is stopped; checks the last."""
    inputs[0].say("running")
    ends_at = time.monotonic() + LONG_S
    while not calls[0].is_stopped:
        calls[-1].check()
        assert time.monotonic() < ends_at
        time.sleep(0.002)


@function(batch=BATCH, limits=Limits(output="1KiB"))
def each(inputs: list[Ask]) -> list[str | Exception]:
    return [output_for(one) for one in inputs]


@function(batch=BATCH, attempts=2)
def together(inputs: list[Ask]) -> list[str]:
    """May run again."""
    fail(inputs)
    return upper(inputs)


@function(batch=BATCH, attempts=1)
def once(inputs: list[Ask]) -> list[str]:
    """Must not run again."""
    fail(inputs)
    return upper(inputs)


@function(batch=BATCH)
def miscounts(inputs: list[Ask]) -> list[str]:
    how = inputs[0].how
    if how == "short":
        return ["one"]
    return "two" if how == "text" else dict.fromkeys("ab")  # type: ignore[return-value] - as authors err


@function(batch=BATCH)
def tells(inputs: list[Ask], *, calls: list[Call]) -> list[int]:
    """How far each is, by its own call."""
    for number, call in enumerate(calls):
        call.progress(number / len(calls), call.job_id)
    return [call.attempt for call in calls]


@function(batch=BATCH)
def waits(inputs: list[Ask], *, calls: list[Call]) -> list[str]:
    """Until the first is stopped, then answers all."""
    wait(inputs, calls)
    return upper(inputs)


@function(batch=BATCH)
def goes_on(inputs: list[Ask], *, calls: list[Call]) -> list[str]:
    """Until all are stopped, or the soft limit."""
    inputs[0].say("running")
    while True:
        calls[0].check()
        time.sleep(0.002)


@function(batch=BATCH)
def sleeps(inputs: list[Ask]) -> list[str]:
    """Never looks up."""
    inputs[0].say("running")
    time.sleep(LONG_S)
    return upper(inputs)


@function(batch=BATCH)
def fails_when_told(inputs: list[Ask], *, calls: list[Call]) -> list[str]:
    """Fails for four once the first has been stopped: the others run again without it."""
    if len(inputs) == 4:
        with contextlib.suppress(CallStopped):
            wait(inputs, calls)
        raise RuntimeError("out of order")
    return upper(inputs)


class Broken:
    """Fails for whoever asks what it is."""

    @property
    def __class__(self) -> type:  # type: ignore[override] - as authors err
        raise RuntimeError("out of order")


@function(batch=BATCH)
def broken(inputs: list[Ask]) -> list[Any]:
    return [Broken() if one.how == "raise" else one.text.upper() for one in inputs]


class Shrinking(BaseModel):
    """An output that takes another one off the list when it becomes JSON."""

    text: str

    @field_serializer("text")
    def once(self, text: str) -> str:
        kept.pop()
        return text


kept: list[Shrinking] = []


@function(batch=BATCH)
def shrinks(inputs: list[Ask]) -> list[Shrinking]:
    kept[:] = [Shrinking(text=one.text) for one in inputs]
    return kept


class Written(BaseModel):
    after: str

    @field_serializer("after")
    def once_it_is_there(self, after: str) -> str:
        give_up_at = time.monotonic() + LONG_S
        while not Path(after).exists():
            assert time.monotonic() < give_up_at
            time.sleep(0.002)
        return after


@function(batch=BATCH)
def written(inputs: list[Ask]) -> list[Written]:
    """Outputs that become JSON once the file is there that is noted."""
    return [Written(after=one.note) for one in inputs]
