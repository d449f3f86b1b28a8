"""JSON in, JSON out: what passes, what doesn't, and what a refusal says and never says."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    field_serializer,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from headrace import InvalidInput, function
from headrace.errors import InvalidOutput

SECRET = "attack at dawn"


def takes(type_: Any):
    def fn(input): ...

    fn.__annotations__ = {"input": type_, "return": None}
    return function()(fn)


def gives(type_: Any):
    def fn(input): ...

    fn.__annotations__ = {"input": int, "return": type_}
    return function()(fn)


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[str]


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Owner(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    full_name: str = Field(alias="full-name", min_length=2)
    pets: list[Pet] = []
    born: datetime.date | None = None


@dataclass
class Point:
    x: Annotated[float, Field(ge=0)]
    tags: list[str] = field(default_factory=list)


class Row(TypedDict, total=False):
    id: int
    ratio: float


@pytest.mark.parametrize(
    ("type_", "data", "expected"),
    [
        (Owner, '{"full-name": "Ada"}', Owner(full_name="Ada")),
        (list[Cat | Dog], '[{"kind": "cat", "lives": "9"}]', [Cat(lives=9)]),
        (Point, '{"x": 1}', Point(1.0)),
        (Row, '{"id": 3}', {"id": 3}),
        (list[int], "[1, 2]", [1, 2]),
        (str, '"text"', "text"),
        (dict[str, list[int]], '{"a": [1]}', {"a": [1]}),
        (int | None, "null", None),
        (decimal.Decimal, '"1.10"', decimal.Decimal("1.10")),
        (datetime.date, '"2026-01-02"', datetime.date(2026, 1, 2)),
        (tuple[int, str], '[1, "a"]', (1, "a")),
        (Any, '{"free": [1]}', {"free": [1]}),
    ],
)  # fmt: skip
def test_inputs_are_read(type_, data, expected):
    assert takes(type_).decode(data.encode()) == expected


@pytest.mark.parametrize(
    ("type_", "data", "path", "message"),
    [
        (Owner, "{}", "/full-name", "Field required"),
        (Owner, '{"full-name": "A"}', "/full-name", "at least 2 characters"),
        (Pet, f'{{"kind": "{SECRET}"}}', "", "'kind' must be one of 'cat', 'dog'"),
        (Owner, '{"full-name": "Ada", "pets": [{"kind": "cat"}]}', "/pets/0/lives", "Field required"),
        (Owner, f'{{"full-name": "Ada", "born": "{SECRET}"}}', "/born", "date"),
        (Point, '{"x": -1}', "/x", "greater than or equal to 0"),
        (Point, '{"x": 1, "tags": ["a", 2, 3]}', "/tags/1", "valid string (and 1 more)"),
        (list[int | list[int]], f'[1, [2, "{SECRET}"]]', "/1", "and 1 more"),
        (dict[str, int], '{"a/b~c": "x"}', "/a~1b~0c", "valid integer"),
        (dict[int, int], f'{{"{SECRET}": 1}}', f"/{SECRET}", "valid integer"),
        (uuid.UUID, f'"{SECRET}"', "", "UUID"),
        (int, "1.5", "", "integer"),
        (int, f'{{"{SECRET}', "", "not valid JSON"),
        (int, "", "", "not valid JSON"),
        (Literal["a", "b"], f'"{SECRET}"', "", "'a' or 'b'"),
        (enum.Enum("Colour", {"RED": "red"}), f'"{SECRET}"', "", "'red'"),
    ],
)  # fmt: skip
def test_bad_inputs_are_refused_with_their_place_and_without_their_values(type_, data, path, message):
    with pytest.raises(InvalidInput) as caught:
        takes(type_).decode(data.encode())
    assert caught.value.path == path
    assert message in caught.value.message
    assert SECRET not in caught.value.message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_validators_of_the_type_refuse_in_their_own_words():
    class Even(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def even(cls, number: int) -> int:
            if number < 0:
                raise InvalidInput("no negative numbers", path="/number")
            if number % 2:
                raise ValueError("must be even")
            return number

    halve = takes(Even)
    with pytest.raises(InvalidInput, match="must be even") as caught:
        halve.decode(b'{"number": 1}')
    assert caught.value.path == "/number"
    with pytest.raises(InvalidInput, match="no negative numbers"):
        halve.decode(b'{"number": -1}')


def test_a_validator_that_crashes_is_not_the_callers_fault():
    class Fragile(BaseModel):
        @model_validator(mode="before")
        @classmethod
        def crash(cls, data: Any) -> Any:
            raise KeyError("bug")

    with pytest.raises(KeyError):
        takes(Fragile).decode(b"{}")


@pytest.mark.parametrize(
    ("type_", "output", "expected"),
    [
        (datetime.date, datetime.date(1815, 12, 10), '"1815-12-10"'),
        (Owner, Owner(full_name="Ada"), '{"full-name":"Ada","pets":[],"born":null}'),
        (Owner, {"full-name": "Ada"}, '{"full-name":"Ada","pets":[],"born":null}'),
        (Point, Point(1, ["ü"]), '{"x":1.0,"tags":["ü"]}'),
        (Row, {"id": 1}, '{"id":1}'),
        (list[list[float]], [[0.5, 1], [2]], "[[0.5,1.0],[2.0]]"),
        (Cat | Dog, Dog(tricks=["sit"]), '{"kind":"dog","tricks":["sit"]}'),
        (str, "NaN, Infinity and null", '"NaN, Infinity and null"'),
        (list[str | None], [None, "NaN"], '[null,"NaN"]'),
        (Any, {"a": [None, 1.5, "u"]}, '{"a":[null,1.5,"u"]}'),
        (None, None, "null"),
        (bytes, b"abc", '"abc"'),
    ],
)  # fmt: skip
def test_outputs_are_written_compactly(type_, output, expected):
    assert gives(type_).encode(output).decode() == expected


class Floats(BaseModel):
    values: list[float | None] = []
    free: Any = None


class Constants(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    value: float


class Strings(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    value: float


@dataclass
class Nested:
    models: dict[str, Constants]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize(
    ("type_", "wrap", "path"),
    [
        (float, lambda x: x, ""),
        (list[float], lambda x: [1.0, x], "/1"),
        (Point, lambda x: Point(1, x), "/tags"),
        (Row, lambda x: {"ratio": x}, "/ratio"),
        (Floats, lambda x: Floats(values=[None, x]), "/values/1"),
        (Floats, lambda x: Floats(free={"a/b": (x,)}), "/free/a~1b/0"),
        (Constants, lambda x: Constants(value=x), "/value"),
        (Strings, lambda x: Strings(value=x), "/value"),
        (Nested, lambda x: Nested({"m": Constants(value=x)}), "/models/m/value"),
        (Any, lambda x: [[x]], "/0/0"),
        (dict[str, Any], lambda x: {"k": x}, "/k"),
        (RootModel[list[float]], lambda x: RootModel[list[float]]([x]), "/0"),
    ],
)
def test_numbers_without_json_are_refused(type_, wrap, path, number):
    with pytest.raises(InvalidOutput) as caught:
        gives(type_).encode(wrap(number))
    assert str(caught.value).startswith(f"at {path}: " if path else "")


def test_a_serializer_of_the_type_may_settle_them():
    class Settled(BaseModel):
        value: float

        @field_serializer("value")
        def finite(self, value: float) -> float | None:
            return value if math.isfinite(value) else None

    assert gives(Settled).encode(Settled(value=math.nan)) == b'{"value":null}'


def endless(null: None = None) -> list[Any]:
    loop: list[Any] = [null]
    loop.append(loop)
    return loop


def deep() -> list[Any]:
    nested: list[Any] = [None]
    for _ in range(100_000):
        nested = [nested]
    return nested


def breaking() -> Iterator[int]:
    yield 1
    raise RuntimeError(SECRET)


class Breaking(Mapping[str, int]):
    """All that is asked of it raises."""

    def __getitem__(self, key: str) -> int:
        raise RuntimeError(SECRET)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError(SECRET)

    def __len__(self) -> int:
        raise RuntimeError(SECRET)


class Lazy(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    lives: int


class BreakingLazily:
    @property
    def lives(self) -> int:
        raise RuntimeError(SECRET)


def mutated() -> Cat:
    cat = Cat(lives=1)
    cat.lives = SECRET  # type: ignore[assignment]
    return cat


@pytest.mark.parametrize(
    ("type_", "output"),
    [
        (Owner, {"full-name": 1}),
        (Owner, None),
        (Cat, Dog(tricks=[SECRET])),
        (Cat, mutated()),
        (Cat, Cat.model_construct(lives=SECRET)),
        (Point, Point(-1)),
        (Point, Point(SECRET)),
        (list[Point], [Point(1), Point(-1)]),
        (int, SECRET),
        (None, 1),
        (list[int], [1, SECRET]),
        (str, "\ud800"),
        (bytes, b"\xff"),
        (Any, endless()),
        (list[Any], endless()),
        (Any, deep()),
        (Any, object()),
        (Any, {"a": "\ud800"}),
        (Row, {"unknown": 1, "id": SECRET}),
        (list[int], breaking()),
        (tuple[int, ...], breaking()),
        (dict[str, int], Breaking()),
        (Lazy, BreakingLazily()),
        (Pet, {"kind": SECRET}),
    ],
)
def test_bad_outputs_are_refused_without_their_values(type_, output):
    with pytest.raises(InvalidOutput) as caught:
        gives(type_).encode(output)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_what_pydantic_has_checked_is_not_checked_again():
    checks = 0

    class Counted(BaseModel):
        value: int

        @field_validator("value")
        @classmethod
        def count(cls, value: int) -> int:
            nonlocal checks
            checks += 1
            return value

    made = Counted(value=1)
    assert gives(Counted).encode(made) == b'{"value":1}'
    assert checks == 1


def test_an_answer_is_json_again():
    output = [[i / 7 for i in range(384)] for _ in range(64)]
    assert json.loads(gives(list[list[float]]).encode(output)) == output
