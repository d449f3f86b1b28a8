"""Every bad declaration fails where it stands, naming file, line, function and field."""

from __future__ import annotations

import decimal
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field

from headrace import Batch, Budget, Call, Cost, Device, File, Function, Limits, function, model, uses
from headrace.errors import DeclarationError

if TYPE_CHECKING:
    from no_such_library import Encoder, Unknown


class Pair(BaseModel):
    left: str
    right: int = Field(default=1, ge=0)


@model()
def encoder(device: Device) -> Encoder:
    """An encoder."""


def refused(declare) -> str:
    with pytest.raises(DeclarationError) as caught:
        declare()
    return str(caught.value)


def test_a_declaration_keeps_the_function_and_says_what_it_needs():
    @function(budget=Budget(hard=5), limits=Limits(input="2KiB"), name="pairs")
    def score(input: Pair, *, call: Call, left: Encoder = uses(encoder)) -> int:
        """Score a pair.

        By length.
        """
        return len(input.left)

    assert isinstance(score, Function)
    assert score.fn(Pair(left="abc"), call=None, left=None) == 3
    assert score(Pair(left="abc"), call=None, left=None) == 3
    assert (score.name, score.call_parameter, score.is_async) == ("pairs", "call", False)
    assert dict(score.models) == {"left": encoder}
    manifest = score.manifest
    assert (manifest.name, manifest.pool) == ("pairs", "default")
    assert (manifest.attempts, manifest.concurrency) == (2, 1)
    assert manifest.description == "Score a pair.\n\nBy length."
    assert (manifest.budget, manifest.limits) == (Budget(hard=5), Limits(input=2048))
    assert score.__doc__ == score.fn.__doc__


def test_pool_and_reserve_are_part_of_the_revision_and_not_of_the_interface():
    def declared(**options):
        @function(**options)
        def score(input: Pair) -> int: ...

        return score.manifest

    plain, reserved = declared(), declared(reserve=64)
    labelled = declared(pool="zone=a.1, gpu=H200")
    assert (plain.reserve, reserved.reserve, plain.pool) == (0, 64, "default")
    assert (declared(pool="large").pool, labelled.pool) == ("large", "gpu=H200,zone=a.1")
    assert labelled == declared(pool="gpu=H200,zone=a.1")
    assert len({one.interface for one in (plain, reserved, labelled)}) == 1
    assert len({one.revision for one in (plain, reserved, labelled)}) == 3


def test_an_async_function_reserves_nothing():
    async def wait(input: int) -> None: ...

    message = refused(lambda: function(reserve=1)(wait))
    assert message == (
        f"{__file__}:{wait.__code__.co_firstlineno}: function 'wait', reserve: the function is async, so it "
        "has slots of its own: leave out reserve="
    )


def test_calling_without_a_model_says_which():
    @function()
    def score(input: int, *, left: Encoder = uses(encoder)) -> int:
        return input

    with pytest.raises(TypeError, match=r"score\(\) called directly needs left by name"):
        score(1)


def test_async_bodies_are_known():
    @function()
    async def wait(input: int) -> None: ...

    assert wait.is_async
    assert wait.encode(None) == b"null"


def test_types_may_be_local_and_need_no_postponed_annotations():
    class Local(BaseModel):
        x: int

    @function()
    def postponed(input: Local) -> Local:
        return input

    namespace: dict[str, Any] = {"function": function, "Local": Local}
    exec("@function()\ndef eager(input: Local) -> list['Local']: ...", namespace)
    assert postponed.decode(b'{"x": 1}') == Local(x=1)
    assert namespace["eager"].decode(b'{"x": 1}') == Local(x=1)


def test_call_may_be_imported_for_type_checkers_only():
    namespace: dict[str, Any] = {"function": function}
    code = "from __future__ import annotations\n@function()\ndef f(input: int, *, c: Call) -> int: ..."
    exec(compile(code, "f.py", "exec"), namespace)
    assert namespace["f"].call_parameter == "c"


def test_a_refusal_names_file_line_function_and_field():
    line = inspect.currentframe().f_lineno + 3

    def declare():
        @function(attempts=0)
        def score(input: int) -> int: ...

    message = refused(declare)
    assert message == (
        f"{__file__}:{line}: function 'score', attempts: must be a whole number from 1 to 20, not 0"
    )


def signature_mistakes():  # noqa: C901 - a list of functions
    def no_parameter() -> int: ...
    def untyped(input) -> int: ...
    def no_return(input: int): ...
    def extra_positional(input: int, other: int) -> int: ...
    def unknown_injected(input: int, *, other: int) -> int: ...
    def plain_default(input: int, *, other: int = 3) -> int: ...
    def untyped_injected(input: int, *, other) -> int: ...
    def untyped_model(input: int, *, other=uses(encoder)) -> int: ...
    def input_is_a_model(input: int = uses(encoder)) -> int: ...
    def input_default(input: int = 3) -> int: ...
    def input_by_name(*, input: int) -> int: ...
    def starred(*inputs: int) -> int: ...
    def options(input: int, **others: int) -> int: ...
    def two_calls(input: int, *, call: Call, again: Call) -> int: ...
    def call_default(input: int, *, call: Call = None) -> int: ...
    def unresolvable(input: Unknown) -> int: ...
    def unresolvable_return(input: int) -> list[Unknown]: ...
    def unresolvable_injected(input: int, *, other: Unknown) -> int: ...
    def bad_pattern(input: Annotated[str, Field(pattern="(")]) -> int: ...
    def no_schema(input: decimal.Context) -> int: ...
    def no_schema_return(input: int) -> decimal.Context: ...

    def no_return_yields(input: int):
        yield input

    async def no_return_yields_async(input: int):
        yield input

    return {
        no_parameter: ("input", "needs a first parameter"),
        untyped: ("parameter 'input'", "has no type"),
        no_return: ("return", "has no type"),
        no_return_yields: ("return", r"as the body yields: -> Iterator\[ITEM\]"),
        no_return_yields_async: ("return", r"as the body yields: -> AsyncIterator\[ITEM\]"),
        extra_positional: ("parameter 'other'", r"put a \* before it"),
        unknown_injected: ("parameter 'other'", "nothing to inject"),
        plain_default: ("parameter 'other'", "nothing to inject"),
        untyped_injected: ("parameter 'other'", "has no type"),
        untyped_model: ("parameter 'other'", "has no type"),
        input_is_a_model: ("parameter 'input'", "models are keyword-only"),
        input_default: ("parameter 'input'", "must have no default"),
        input_by_name: ("parameter 'input'", "must be an ordinary positional one"),
        starred: ("parameter 'inputs'", "must be an ordinary positional one"),
        options: ("parameter 'others'", "not allowed"),
        two_calls: ("parameter 'again'", "given already, as 'call'"),
        call_default: ("parameter 'call'", "must have no default"),
        unresolvable: ("parameter 'input'", "'Unknown' can't be resolved .*import it above the function"),
        unresolvable_return: ("return", r"'list\[Unknown\]' can't be resolved"),
        unresolvable_injected: ("parameter 'other'", "'Unknown' can't be resolved"),
        bad_pattern: ("input type", "pydantic can't describe .*regex"),
        no_schema: ("input type", "pydantic can't describe"),
        no_schema_return: ("output type", "pydantic can't describe"),
    }


@pytest.mark.parametrize(
    ("fn", "expected"), signature_mistakes().items(), ids=lambda one: getattr(one, "__name__", "")
)
def test_signature_mistakes(fn, expected):
    field, reason = expected
    place = f"{__file__}:{fn.__code__.co_firstlineno}: function {fn.__name__!r}, {field}: "
    message = refused(lambda: function()(fn))
    assert message.startswith(place)
    assert re.search(reason, message.removeprefix(place))


@pytest.mark.parametrize(
    ("options", "field", "reason"),
    [
        ({"attempts": 0}, "attempts", "from 1 to 20, not 0"),
        ({"attempts": 21}, "attempts", "from 1 to 20, not 21"),
        ({"attempts": True}, "attempts", "not True"),
        ({"attempts": 2.0}, "attempts", "whole number"),
        ({"concurrency": 0}, "concurrency", "not 0"),
        ({"name": "n" * 60}, "name", "1 to 40 characters"),
        ({"name": "n" * 41}, "name", "1 to 40 characters"),
        ({"name": ""}, "name", "1 to 40 characters"),
        ({"name": "Score"}, "name", "a to z"),
        ({"name": "a/b"}, "name", "a to z"),
        ({"name": "a\n"}, "name", "a to z"),
        ({"name": 3}, "name", "3 is not allowed"),
        ({"pool": "No Pool"}, "pool", "not allowed: 1 to 40 characters, a to z"),
        ({"pool": ""}, "pool", "'' is not allowed: 1 to 40 characters, a to z"),
        ({"pool": "*"}, "pool", "not allowed"),
        ({"pool": None}, "pool", "must be a text, not None"),
        ({"pool": "gpu="}, "pool", "'gpu=' is not allowed: key=value,..."),
        ({"pool": "GPU=h200"}, "pool", "not allowed: key=value,..."),
        ({"pool": "gpu=h200,zone"}, "pool", "not allowed: key=value,..."),
        ({"pool": "gpu=h200,gpu=b200"}, "pool", "each key once"),
        ({"pool": "gpu=" + "v" * 64}, "pool", "a value of 1 to 63"),
        ({"reserve": -1}, "reserve", "must be a whole number from 0 to 64, not -1"),
        ({"reserve": 65}, "reserve", "from 0 to 64, not 65"),
        ({"reserve": True}, "reserve", "not True"),
        ({"reserve": 1, "concurrency": 2}, "reserve", "has a concurrency of 2, so it has slots of its own"),
        ({"budget": 10}, "budget", "must be a Budget, not 10"),
        ({"limits": "1MiB"}, "limits", "must be a Limits"),
        ({"cost": 1}, "cost", "must be a Cost"),
        ({"cost": Cost.items("lefts")}, "cost", "the input has no 'lefts'; its fields are left, right"),
        ({"cost": Cost.items("left.more")}, "cost", "the input has no 'left.more'"),
        ({"atempts": 1}, "atempts", "no such option; there are attempts,"),
        ({"examples": [{"left": "a"}, {"left": 1}]}, "examples[1]", "not of type"),
        ({"examples": [{}]}, "examples[0]", '"left" is a required property'),
        ({"examples": [{"left": "a", "rihgt": 1}]}, "examples[0]", "rihgt"),
        ({"examples": [{"left": "a", "right": float("nan")}]}, "examples[0]", "Out of range float"),
        ({"examples": [object()]}, "examples[0]", "Unable to serialize"),
    ],
)  # fmt: skip
def test_option_mistakes(options, field, reason):
    def score(input: Pair) -> int: ...

    message = refused(lambda: function(**options)(score))
    place = f"{__file__}:{score.__code__.co_firstlineno}: function 'score', {field}: "
    assert message.startswith(place)
    assert reason in message


def test_budgets_and_limits_refuse_at_their_own_line():
    for make in (
        lambda: Budget(hard=-1),
        lambda: Budget(sync=0),
        lambda: Budget(queue=float("inf")),
        lambda: Budget(margin="15"),
        lambda: Limits(input="1 apple"),
        lambda: Limits(output=0),
        lambda: Batch(max_cost=0),
    ):
        with pytest.raises(ValueError, match=r"hard|sync|queue|margin|input|output|max_cost"):
            make()
    with pytest.raises(ValueError, match=r"soft \(40 s\) must not be over hard \(30 s\)"):
        Budget(soft=40, hard=30)


def test_costs_may_lead_through_nested_and_open_inputs():
    class Outer(BaseModel):
        pair: Pair
        extra: dict[str, int]

    cost = Cost.chars("pair.left") + Cost.value("extra.anything")

    @function(cost=cost)
    def score(input: Outer) -> int: ...

    assert score.manifest.cost == cost


def test_examples_may_be_made_by_the_input_type():
    @function(examples=[Pair(left="a"), {"left": "b"}])
    def score(input: Pair) -> int: ...

    assert score.manifest.examples == [{"left": "a", "right": 1}, {"left": "b"}]


def test_an_example_must_pass_the_types_own_validation_too():
    def score(input: decimal.Decimal) -> int: ...

    assert "examples[0]" in refused(lambda: function(examples=[{}])(score))


def test_what_is_not_there_yet_is_refused_and_never_half_done():
    def plain(input: int) -> int: ...
    def takes_file(input: File) -> int: ...
    def gives_file(input: int) -> File: ...
    def takes_files(input: list[File]) -> int: ...

    for options, fn, feature in (
        ({"openai": "chat"}, plain, "openai="),
        ({}, takes_file, "File"),
        ({}, gives_file, "File"),
        ({}, takes_files, "File"),
    ):
        message = refused(lambda options=options, fn=fn: function(**options)(fn))
        assert message.startswith(f"{__file__}:{fn.__code__.co_firstlineno}: function {fn.__name__!r}")
        assert feature in message
        assert "not yet supported in this version" in message


def test_files_can_be_neither_made_nor_declared_as_fields():
    def in_a_model():
        class Upload(BaseModel):
            file: File

    def in_a_dataclass():
        @dataclass
        class Upload:
            file: File

        @function()
        def store(input: Upload) -> int: ...

    for use in (File, in_a_model, in_a_dataclass):
        assert "File is not yet supported in this version" in refused(use)


def test_decorators_need_parentheses_and_functions():
    def bare():
        @function
        def score(input: int) -> int: ...

    def bare_model():
        @model
        def load(device: Device) -> int: ...

    assert "write @function() above the function" in refused(bare)
    assert "write @model() above the loader" in refused(bare_model)
    assert "decorates a function, not <class" in refused(lambda: function()(Pair))
    assert "decorates a function, not 3" in refused(lambda: model()(3))
    assert re.match(rf"{re.escape(__file__)}:\d+: function: ", refused(bare))
