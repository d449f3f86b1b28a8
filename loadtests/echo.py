"""A function that does nothing: what is left is the platform's own cost of a call."""

from __future__ import annotations

from pydantic import BaseModel, Field

from headrace import Limits, function


class Message(BaseModel):
    """About a kilobyte of text, numbers and flags."""

    user: str
    text: str = Field(max_length=10_000)
    top_k: int
    scores: list[float]
    flags: dict[str, bool]


class Echo(BaseModel):
    """The text, the numbers and the count that came in."""

    text: str
    n: int
    scores: list[float]


@function(limits=Limits(input="16KiB"))
def echo(input: Message) -> Echo:  # noqa: A002 - the platform's word
    """Answer what was sent."""
    return Echo(text=input.text, n=input.top_k, scores=input.scores)
