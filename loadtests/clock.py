"""A function that says when it was executed."""

from __future__ import annotations

import time

from pydantic import BaseModel

from headrace import function


class Nothing(BaseModel):
    """No input."""


class Reading(BaseModel):
    """A clock's reading, in seconds since 1970."""

    at: float


@function(examples=[{}])
def clock(input: Nothing) -> Reading:  # noqa: A002 - the platform's word, and no need of it
    """Tell the time."""
    return Reading(at=time.time())
