"""A function whose model ends the process that loads it, twice."""

from __future__ import annotations

from executor_functions import Ask
from loading_functions import fatal

from headrace import function, uses


@function()
def with_fatal(input: Ask, *, loaded: dict[str, str] = uses(fatal)) -> str:
    return input.text
