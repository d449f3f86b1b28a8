"""What type checkers must refuse: where they accept a line, its `ignore` is unused and fails. Never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Iterator

from headrace import Batch, Budget, Call, Device, function, model, uses


@model()
def number(device: Device) -> int:
    return device.index


@function()
async def double(input: int) -> int:
    return 2 * input


def join(items: list[int]) -> str:
    return repr(items)


# Budgets are given by name, in numbers.
Budget(10)  # type: ignore[call-arg]
Budget(hard="30")  # type: ignore[arg-type]

# Options: one that isn't there, wrong types, two kinds of function at once, none for a bare decorator.
function(attempt=2)  # type: ignore[call-overload]
function(attempts="2")  # type: ignore[call-overload]
function(openai="images")  # type: ignore[call-overload]
function(batch=Batch(max_cost=8), collect=join)  # type: ignore[call-overload]
function(join)  # type: ignore[call-overload]
model(memory=1.5)  # type: ignore[arg-type]

# A function isn't a model; a device is parsed from text; an output has its type.
uses(double)  # type: ignore[arg-type]
Device.parse(0)  # type: ignore[arg-type]
double.encode("2")  # type: ignore[arg-type]


@model()  # type: ignore[arg-type]
def deviceless() -> int:
    return 1


@function()
def takes_text(
    input: int,
    *,
    text: str = uses(number),  # type: ignore[assignment]
) -> int:
    return input + len(text)


@function(batch=Batch(max_cost=8))  # type: ignore[arg-type]
def unbatched(inputs: list[int]) -> int:
    return len(inputs)


@function(collect=join)  # type: ignore[arg-type]
def streams_what_join_refuses(input: int) -> Iterator[str]:
    yield str(input)


@function(collect=join)  # type: ignore[arg-type]
def not_a_stream(input: int) -> int:
    return input


@function()
async def invokes_with_text(input: int, *, call: Call) -> int:
    return await call.invoke(double, "2")  # type: ignore[misc]
