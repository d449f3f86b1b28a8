"""`Call.invoke` in a test of a function, without a site; the inputs that are sent, the outputs that come."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field

from headrace import (
    Batch,
    Call,
    Device,
    InvalidInput,
    InvocationError,
    PermanentError,
    TransientError,
    function,
    model,
    uses,
)
from headrace.errors import DeclarationError, InvalidOutput


class Text(BaseModel):
    text: str = Field(min_length=1)


@dataclass
class Length:
    characters: int


@function()
def measure(input: Text) -> Length:
    return Length(len(input.text))


@function()
async def doubled(input: Text, *, call: Call) -> Length:
    length = await call.invoke(measure, input)
    return Length(2 * length.characters)


@function(batch=Batch(max_cost=10))
def together(inputs: list[Text], *, calls: list[Call]) -> list[int | Exception]:
    assert len(calls) == len(inputs)
    return [InvalidInput("too short") if one.text == "a" else len(one.text) for one in inputs]


def total(items: list[int]) -> int:
    return sum(items)


@function(collect=total)
def streams(input: int) -> Iterator[int]:
    yield from range(input)


@function(collect=total)
async def streams_too(input: int) -> AsyncIterator[int]:
    for number in range(input):
        yield number


@model()
def nothing(device: Device) -> str:
    return ""


@function()
def needs_a_model(input: int, *, held: str = uses(nothing)) -> int:
    return input


@function()
def fails(input: str) -> int:
    raise {"for good": PermanentError("broken"), "for now": TransientError("later")}[input]


def a_call(**more: Any) -> Call:
    later = time.monotonic() + 60
    return Call(job_id="j", attempt=1, soft_at=later, deadline_at=later, **more)


def invoked(function: Any, input: Any, **more: Any) -> Any:
    return asyncio.run(a_call(**more).invoke(function, input))


def failure(function: Any, input: Any) -> InvocationError:
    with pytest.raises(InvocationError) as caught:
        invoked(function, input)
    return caught.value


def test_a_body_can_be_tested_that_calls_others() -> None:
    assert asyncio.run(doubled.fn(Text(text="abc"), call=a_call())) == Length(6)


def test_every_shape_can_be_called() -> None:
    assert invoked(measure, Text(text="abc")) == Length(3)
    assert invoked(doubled, Text(text="abc")) == Length(6)
    assert invoked(together, Text(text="abc")) == 3
    assert invoked(streams, 4) == invoked(streams_too, 4) == 6


def test_what_goes_wrong_is_as_on_a_site() -> None:
    error = failure(together, Text(text="a"))
    assert (error.function, error.category, error.message) == ("together", "invalid-input", "too short")
    assert failure(fails, "for good").message == "broken"
    assert failure(fails, "for now").category == "attempts-exhausted"


@pytest.mark.parametrize("input", [{"text": "abc"}, Text.model_construct(text=""), None, 3])
def test_an_input_of_another_type_is_refused(input: Any) -> None:
    assert failure(measure, input).category == "invalid-input"


def test_what_needs_models_has_to_be_stood_in_for() -> None:
    with pytest.raises(DeclarationError, match=r"needs_a_model uses models.*Call\(invoke=\.\.\.\)"):
        invoked(needs_a_model, 1)

    async def stands_in(function: Any, input: Any) -> Any:
        return function.name, input

    assert invoked(needs_a_model, 1, invoke=stands_in) == ("needs_a_model", 1)


def test_an_input_is_written_so_that_it_can_be_read() -> None:
    @function()
    def halve(input: float) -> float: ...

    assert measure.decode(measure.encode_input(Text(text="ä"))) == Text(text="ä")
    for number in (math.nan, math.inf):
        with pytest.raises(InvalidInput):
            halve.encode_input(number)


def test_an_output_is_read_as_it_was_written() -> None:
    assert measure.decode_output(measure.encode(Length(3))) == Length(3)
    with pytest.raises(InvalidOutput, match="at /characters"):
        measure.decode_output(b'{"characters": "x"}')
