"""Functions that take lists of inputs, and ones that yield: what they register, and how they go wrong."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import pytest
from pydantic import BaseModel, Field

from headrace import Batch, Budget, Call, Cost, Device, function, model, uses
from headrace.errors import DeclarationError

if TYPE_CHECKING:
    from no_such_library import Encoder


class Pair(BaseModel):
    left: str


class Sized(BaseModel):
    size: int
    parts: list[int]


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
    async def joined(inputs: Sequence[Pair], *, calls: Sequence[Call]) -> Sequence[int]: ...

    @function(name="length")
    def single(input: Pair) -> int: ...

    assert (joined.is_async, joined.is_batched, single.is_batched) == (True, True, False)
    assert joined.manifest.interface == single.manifest.interface
    assert joined.manifest.revision != single.manifest.revision


def test_notes_on_an_output_stay_where_an_exception_may_take_its_place():
    @function(batch=Batch(max_cost=8))
    def least(
        inputs: list[int],
    ) -> list[Annotated[int | Exception, Field(description="more")] | Annotated[Exception | None, "none"]]:
        return [max(inputs)]

    assert [one["type"] for one in least.manifest.output_schema["anyOf"]] == ["integer", "null"]
    assert least.manifest.output_schema["anyOf"][0]["description"] == "more"


def test_items_may_be_none():
    @function(collect=list)
    def ticks(input: int) -> Iterator[None]:
        yield None

    assert ticks.is_streaming
    assert ticks.manifest.item_schema == {"type": "null"}
    assert ticks.encode_item(None) == b"null"


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


def shape_mistakes():  # noqa: C901, PLR0915 - a list of functions
    batched, streamed = {"batch": Batch(max_cost=8)}, {"collect": list}

    def one_input(inputs: int) -> list[int]: ...
    def one_output(inputs: list[int]) -> int: ...
    def one_list(inputs: list[int]) -> list[int]: ...
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
    def returns_exceptions(input: int) -> int | Exception: ...
    def returns_an_exception(input: int) -> Annotated[ValueError, "noted"]: ...
    def all_exceptions(inputs: list[int]) -> list[Exception]: ...
    def base_exceptions(inputs: list[int]) -> list[int | BaseException]: ...

    def yields_exceptions(input: int) -> Iterator[int | Exception]:
        yield input

    def untyped(items): ...
    def of_none() -> int: ...
    def of_two(items: list[int], more: int) -> int: ...
    def into_exception(items: list[int]) -> Exception: ...

    def into_more(items: list[int]) -> Iterator[int]:
        yield from items

    async def asynchronous(items: list[int]) -> int: ...

    class Called:
        def __call__(self, items: list[int]) -> int: ...

    no_function = "must be a function with a return type: write one that calls "

    return [
        (one_input, batched, "parameter 'inputs'", r"must be list\[INPUT\], as the function is batched"),
        (one_output, batched, "return", r"must be list\[OUTPUT \| Exception\]"),
        (bare_list, batched, "parameter 'inputs'", r"must be list\[INPUT\]"),
        (one_call, batched, "parameter 'call'", r"a batched function takes calls: list\[Call\]"),
        (only_exceptions, batched, "return", "has no type of an output that succeeded"),
        (all_exceptions, batched, "return", r"succeeded: write list\[OUTPUT \| Exception\]"),
        (base_exceptions, batched, "return", r"BaseException can't .*: write list\[OUTPUT \| Exception\]"),
        (returns_exceptions, {}, "return", "Exception can't .*: leave it out of the type, and raise it"),
        (returns_an_exception, {}, "return", "ValueError can't .*: leave it out of the type"),
        (yields_exceptions, streamed, "return", "Exception can't .*: leave it out of the type"),
        (one_list, batched | streamed, "collect", "a batched one returns: leave it out"),
        (
            one_list,
            {"batch": Batch(max_cost=1.5)},
            "batch",
            r"max_cost \(1.5\) has no room for two calls, as each costs 1 at least: make it 2 or more",
        ),
        (
            one_list,
            batched | {"budget": Budget(queue=0.001)},
            "batch",
            r"max_wait \(0.005 s\) must not be over the queue budget \(0.001 s\)",
        ),
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
        (yields, {"collect": of_none}, "collect", "called with one argument, the list of items .*too many"),
        (yields, {"collect": of_two}, "collect", "called with one argument, the list of items .*'more'"),
        (yields, {"collect": into_exception}, "collect", "Exception can't .*: leave it out of the type"),
        (yields, {"collect": into_more}, "collect", "must not yield"),
        (yields, {"collect": asynchronous}, "collect", "must not be async"),
        (yields, {"collect": sum}, "collect", no_function + "sum"),
        (yields, {"collect": tuple}, "collect", no_function + "tuple"),
        (yields, {"collect": Called()}, "collect", no_function + "this Called"),
        (yields, {"collect": functools.partial(of_two, more=1)}, "collect", no_function + "this partial"),
        (yields, {"collect": 3}, "collect", "must be a function, not 3"),
        (returns, {"batch": 8}, "batch", "must be a Batch, not 8"),
    ]


def test_a_batch_has_room_for_the_cheapest_calls_whatever_others_cost():
    def total(inputs: list[Sized]) -> list[int]: ...

    one, parts = Cost(), Cost.items("parts")
    message = refused(lambda: function(batch=Batch(max_cost=3), cost=one + one + parts)(total))
    assert "as each costs 2 at least: make it 4 or more" in message
    for cost in (one + parts, one + one + Cost.value("size"), one + one + Cost.items("parts", -1)):
        assert function(batch=Batch(max_cost=3), cost=cost)(total).is_batched


@pytest.mark.parametrize(("fn", "options", "field", "reason"), shape_mistakes())
def test_mistakes_in_batched_and_streaming_functions(fn, options, field, reason):
    message = refused(lambda: function(**options)(fn))
    place = f"{__file__}:{fn.__code__.co_firstlineno}: function {fn.__name__!r}, {field}: "
    assert message.startswith(place)
    assert re.search(reason, message.removeprefix(place))
