"""Functions whose calls are joined, beside one whose aren't."""

from __future__ import annotations

import os
import time

from executor_functions import Ask

from headrace import Batch, Budget, Call, Cost, InvalidInput, function


@function(batch=Batch(max_cost=8, max_wait=0.05), cost=Cost.chars("text"))
def join(inputs: list[Ask]) -> list[str | Exception]:
    """Costs a character each; what begins with `bad` is wrong, and `kill` ends the process."""
    if any(ask.text == "kill" for ask in inputs):
        os._exit(3)
    time.sleep(max(ask.seconds for ask in inputs))
    return [InvalidInput("bad text") if ask.text.startswith("bad") else ask.text for ask in inputs]


@function(batch=Batch(max_cost=4, max_wait=0), concurrency=2)
def pair(inputs: list[Ask], *, calls: list[Call]) -> list[int]:
    """In slots of its own; how many are joined."""
    return [len(inputs)] * len(inputs)


@function(batch=Batch(max_cost=4), budget=Budget(sync=10, soft=0.2, hard=0.3))
def hang_together(inputs: list[Ask]) -> list[int]:
    """Past its hard limit if one of them says so."""
    if any(ask.text == "hang" for ask in inputs):
        while True:
            try:
                time.sleep(60)
            except BaseException:
                continue
    return [len(inputs)] * len(inputs)


@function()
def plain(input: Ask) -> str:
    return input.text
