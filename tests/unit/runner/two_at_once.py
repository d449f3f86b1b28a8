"""A function of which one executor runs two calls at once."""

from __future__ import annotations

from executor_functions import Ask

from headrace import function


@function(concurrency=2)
def pair_of(input: Ask) -> int:
    return 0
