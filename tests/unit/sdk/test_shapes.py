"""Functions that take lists of inputs, and ones that yield: what they register, and how they go wrong."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pytest
from pydantic import BaseModel

from headrace import Batch, Call, Device, function, model, uses
from headrace.errors import DeclarationError

if TYPE_CHECKING:
    from no_such_library import Encoder


class Pair(BaseModel):
    left: str


@model()
def encoder(device: Device) -> Encoder:
    """An encoder."""


def refused(declare) -> str:
    with pytest.raises(DeclarationError) as caught:
        declare()
    return str(caught.value)


def test_a_batched_function_registers_the_types_of_one_call():
    @function(batch=Batch(max_cost=8, max_wait=0.01))
    def lengths(
        inputs: list[Pair], *, calls: list[Call], left: Encoder = uses(encoder)
    ) -> list[int | Exception | None]:
        return [len(one.left) for one in inputs]

    assert lengths.is_batched
    assert not lengths.is_streaming
    assert (lengths.call_parameter, dict(lengths.models)) == ("calls", {"left": encoder})
    assert lengths.decode(b'{"left": "abc"}') == Pair(left="abc")
    assert (lengths.encode(3), lengths.encode(None)) == (b"3", b"null")
    assert lengths.manifest.batch == Batch(max_cost=8, max_wait=0.01)
    assert lengths.manifest.input_schema["required"] == ["left"]
    assert lengths.manifest.output_schema == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert lengths.fn([Pair(left="a"), Pair(left="bc")], calls=[], left=None) == [1, 2]


def test_a_batched_function_has_the_interface_of_one_that_isnt():
    @function(name="length", batch=Batch(max_cost=8))
    async def joined(inputs: Sequence[Pair]) -> Sequence[int]: ...

    @function(name="length")
    def single(input: Pair) -> int: ...

    assert (joined.is_async, joined.is_batched, single.is_batched) == (True, True, False)
    assert joined.manifest.interface == single.manifest.interface
    assert joined.manifest.revision != single.manifest.revision


def joined_words(items: list[str]) -> str:
    return " ".join(items)


class Counter:
    def sums(self, items: list[int]) -> int:
        return sum(items)


@pytest.mark.parametrize(
    ("collect", "items", "output", "schema"),
    [
        (list, ["a", "b"], ["a", "b"], {"type": "array", "items": {"type": "string"}}),
        (joined_words, ["a", "b"], "a b", {"type": "string"}),
        ("".join, ["a", "b"], "ab", {"type": "string"}),
        (Counter().sums, [1, 2], 3, {"type": "integer"}),
    ],
)
def test_a_body_that_yields_has_items_and_what_joins_them(collect, items, output, schema):
    item_type = type(items[0])

    @function(collect=collect)
    def stream(input: int) -> Iterator[item_type]:
        yield from items

    assert stream.is_streaming
    assert not stream.is_async
    assert stream.manifest.output_schema == schema
    assert stream.manifest.item_schema == {"type": "integer" if item_type is int else "string"}
    assert stream.collect(list(stream.fn(1))) == output
    assert stream.encode_item(items[0]) == msgspec.json.encode(items[0])


def test_an_asynchronous_body_may_yield_too():
    @function(collect=list)
    async def stream(input: int) -> AsyncIterator[int]:
        yield input

    assert (stream.is_async, stream.is_streaming) == (True, True)


def test_what_joins_and_what_is_yielded_are_part_of_interface_and_revision():
    def declared(collect, item):
        def stream(input: int) -> Iterator[item]:
            yield input

        return function(collect=collect)(stream).manifest

    def other_words(items: list[str]) -> str:
        return "+".join(items)

    first, same = declared(joined_words, str), declared(joined_words, str)
    assert first == same
    assert declared(other_words, str).interface == first.interface
    assert declared(other_words, str).revision != first.revision
    assert declared(list, int).interface != declared(list, str).interface != first.interface


def shape_mistakes():  # noqa: C901 - a list of functions
    batched, streamed = {"batch": Batch(max_cost=8)}, {"collect": list}

    def one_input(inputs: int) -> list[int]: ...
    def one_output(inputs: list[int]) -> int: ...
    def bare_list(inputs: list) -> list[int]: ...
    def one_call(inputs: list[int], *, call: Call) -> list[int]: ...
    def only_exceptions(inputs: list[int]) -> list[ValueError | KeyError]: ...
    def calls_of_a_plain_one(input: int, *, calls: list[Call]) -> int: ...

    def yields_batches(inputs: list[int]) -> Iterator[list[int]]:
        yield inputs

    def yields(input: int) -> Iterator[int]:
        yield input

    async def yields_async(input: int) -> AsyncIterator[int]:
        yield input

    def returns_iterator(input: int) -> Iterator[int]: ...

    async def returns_async(input: int) -> AsyncIterator[int]: ...

    def yields_undeclared(input: int) -> int:
        yield input

    def yields_nothing_known(input: int) -> Iterator:
        yield input

    def returns(input: int) -> int: ...
    def untyped(items): ...

    return [
        (one_input, batched, "parameter 'inputs'", r"must be list\[INPUT\], as the function is batched"),
        (one_output, batched, "return", r"must be list\[OUTPUT \| Exception\]"),
        (bare_list, batched, "parameter 'inputs'", r"must be list\[INPUT\]"),
        (one_call, batched, "parameter 'call'", r"annotate it as list\[Call\]"),
        (only_exceptions, batched, "return", "has no type of an output that succeeded"),
        (calls_of_a_plain_one, {}, "parameter 'calls'", "annotate it as Call, or"),
        (yields_batches, batched, "batch", "a body that yields can't be batched"),
        (yields, {}, "collect", "is missing: the body yields"),
        (yields_async, {}, "collect", "is missing"),
        (returns_iterator, {}, "collect", "is missing"),
        (returns_async, streamed, "return", "must yield, not return an iterator"),
        (yields_undeclared, streamed, "return", r"must be Iterator\[ITEM\], as the body yields"),
        (yields_nothing_known, streamed, "return", r"must be Iterator\[ITEM\]"),
        (returns, streamed, "collect", "this one returns: leave it out"),
        (yields, {"collect": untyped}, "collect", "has no return type; annotate it"),
        (yields, {"collect": 3}, "collect", "must be a function, not 3"),
        (returns, {"batch": 8}, "batch", "must be a Batch, not 8"),
    ]


@pytest.mark.parametrize(("fn", "options", "field", "reason"), shape_mistakes())
def test_mistakes_in_batched_and_streaming_functions(fn, options, field, reason):
    message = refused(lambda: function(**options)(fn))
    place = f"{__file__}:{fn.__code__.co_firstlineno}: function {fn.__name__!r}, {field}: "
    assert message.startswith(place)
    assert re.search(reason, message.removeprefix(place))
