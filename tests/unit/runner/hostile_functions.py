"""Functions that do what no function should."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from pydantic import BaseModel

from headrace import Budget, Call, PermanentError, function


class Ask(BaseModel):
    text: str = ""


class Exits(PermanentError):
    def __str__(self) -> str:
        raise SystemExit(3)


@function()
def echo(input: Ask) -> str:
    return input.text


@function()
def fork_and_return(input: Ask) -> str:
    return "parent" if os.fork() else "child"


@function(budget=Budget(sync=10, soft=0.2, hard=0.3))
def leave_a_child(input: Ask) -> int:
    Path(input.text).write_text(str(subprocess.Popen(["sleep", "300"]).pid))
    time.sleep(30)
    return 0


@function()
def exit_in_words(input: Ask) -> int:
    raise Exits("never said")


@function()
def look_up_then_nap(input: Ask, *, call: Call) -> int:
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        call.check()
        time.sleep(0.005)
    return 1


@function()
def note(input: Ask) -> int:
    with Path(input.text).open("a") as file:
        file.write("ran\n")
    return 1


@function()
def break_the_channel(input: Ask, *, call: Call) -> int:
    assert call._report is not None
    call._report(0.5, 7)  # type: ignore[arg-type]
    time.sleep(30)
    return 0
