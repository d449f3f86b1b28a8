"""The registered schemas, and the two hashes of a manifest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, Literal

import jsonschema_rs
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field, create_model, with_config
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from headrace import Budget, Device, Function, function, model, uses
from headrace.errors import DeclarationError
from headrace.sdk.schemas import interface_hash


def takes(type_: Any, **options: Any) -> Function[Any, Any]:
    def fn(input): ...

    fn.__annotations__ = {"input": type_, "return": int}
    return function(**options)(fn)


class Inner(BaseModel):
    a: int


class Outer(BaseModel):
    inner: Inner
    more: list[Inner] = []
    table: dict[str, int] = {}
    free: Any = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    inner: Inner | None = None


class Ignoring(BaseModel):
    model_config = ConfigDict(extra="ignore")
    a: int = 1


class OpenChild(Open):
    b: int = 1


class Tree(BaseModel):
    children: list[Tree] = []


@dataclass
class Data:
    a: int


@pydantic_dataclass(config=ConfigDict(extra="allow"))
class OpenData:
    a: int


class Dict(TypedDict):
    a: int


@with_config(ConfigDict(extra="allow"))
class OpenDict(TypedDict):
    a: int


class Said(BaseModel):
    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"type": "integer"}})
    a: int


@pytest.mark.parametrize(
    ("type_", "accepted", "refused"),
    [
        (Inner, [{"a": 1}], [{"a": 1, "b": 2}, {"a": "1"}, {}]),
        (
            Outer,
            [{"inner": {"a": 1}, "table": {"x": 1}, "free": {"y": 1}}],
            [
                {"inner": {"a": 1, "b": 1}},
                {"inner": {"a": 1}, "more": [{"a": 1, "b": 1}]},
                {"inner": {"a": 1}, "x": 1},
            ],
        ),
        (Open, [{"x": 1}], [{"inner": {"a": 1, "b": 1}}]),
        (OpenChild, [{"x": 1}], []),
        (Ignoring, [{"x": 1}], []),
        (Tree, [{"children": [{"children": []}]}], [{"children": [{"x": 1}]}]),
        (Data, [{"a": 1}], [{"a": 1, "b": 1}]),
        (OpenData, [{"a": 1, "b": 1}], []),
        (Dict, [{"a": 1}], [{"a": 1, "b": 1}]),
        (OpenDict, [{"a": 1, "b": 1}], []),
        (Said, [{"a": 1, "b": 1}], [{"a": 1, "b": "x"}]),
        (dict[str, int], [{"x": 1}], [{"x": "1"}]),
        (dict[str, Any], [{"x": {}}], []),
        (RootModel[dict[str, int]], [{"x": 1}], []),
        (RootModel[list[Inner]], [[{"a": 1}]], [[{"a": 1, "b": 1}]]),
        (Inner | Dict, [{"a": 1}], [{"a": 1, "b": 1}]),
        (Any, [{"x": 1}], []),
    ],
)
def test_unknown_fields_are_refused_unless_the_type_has_its_own_rule(type_, accepted, refused):
    declared = takes(type_)
    validator = jsonschema_rs.Draft202012Validator(declared.manifest.input_schema)
    for value in accepted:
        assert validator.is_valid(value)
        declared.decode(json.dumps(value).encode())
    for value in refused:
        assert not validator.is_valid(value)


def test_outputs_are_described_as_they_are_written():
    class Answer(BaseModel):
        value: int = Field(default=1, alias="the-value")

        @computed_field
        @property
        def double(self) -> int:
            return 2 * self.value

    @function()
    def answer(input: int) -> Answer: ...

    schema = answer.manifest.output_schema
    assert set(schema["properties"]) == {"the-value", "double"}
    assert schema["required"] == ["double"]
    assert "additionalProperties" not in schema


def test_a_pattern_that_no_schema_can_hold_is_refused():
    class Odd(BaseModel):
        model_config = ConfigDict(json_schema_extra={"pattern": "("})

    with pytest.raises(DeclarationError, match="input type: its JSON Schema can't be checked"):
        takes(Odd)


def test_a_schema_that_refers_to_another_document_is_refused_and_nothing_is_fetched():
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        elsewhere = f"http://127.0.0.1:{server.server_address[1]}/schema.json"

        class Odd(BaseModel):
            model_config = ConfigDict(json_schema_extra={"not": {"$ref": elsewhere}})

        with pytest.raises(DeclarationError, match=r"schemas can't refer to other documents$"):
            takes(Odd)
        server.shutdown()
    assert asked == []


def variant(name: str = "Thing", config: ConfigDict | None = None, **fields: Any) -> str:
    return takes(create_model(name, __config__=config, **fields)).manifest.interface


def test_the_interface_ignores_what_only_people_read():
    plain = variant(a=(int, ...), title=(str, "x"))
    assert re.fullmatch(r"[0-9a-f]{32}", plain)
    assert plain == variant("Other", a=(int, ...), title=(str, "x"))
    assert plain == variant(a=(int, Field(description="a number")), title=(str, Field("x", title="Title")))
    assert plain == variant(a=(int, Field(examples=[1])), title=(str, "x"))
    assert plain == variant(title=(str, "x"), a=(int, ...))


def test_the_interface_changes_with_what_is_accepted_or_given():
    plain = variant(a=(int, ...))
    changed = [
        variant(a=(float, ...)),
        variant(a=(int, 1)),
        variant(a=(int, Field(ge=1))),
        variant(a=(int, ...), title=(str, "x")),
        variant(a=(int, ...), description=(str, "x")),
        variant(a=(int, ...), examples=(list[int], [])),
        variant(config=ConfigDict(extra="allow"), a=(int, ...)),
        takes(int).manifest.interface,
    ]
    assert len({plain, *changed}) == len(changed) + 1


def test_annotations_are_dropped_where_schemas_stand_and_kept_in_data():
    def hashed(schema: dict[str, Any]) -> str:
        return interface_hash(schema, {})

    for nested in (
        lambda schema: {"$defs": {"title": schema}},
        lambda schema: {"properties": {"examples": schema}},
        lambda schema: {"anyOf": [schema, True]},
        lambda schema: {"prefixItems": [schema]},
        lambda schema: {"items": schema},
        lambda schema: {"additionalProperties": schema},
        lambda schema: {"not": {"if": schema}},
    ):
        bare = hashed(nested({"type": "object"}))
        assert bare == hashed(nested({"type": "object", "title": "T", "description": "D", "examples": [1]}))
        assert bare != hashed(nested({"type": "string"}))
    for data in ("const", "default"):
        assert hashed({data: {"title": "a"}}) != hashed({data: {"title": "b"}})
    assert hashed({"enum": ["title"]}) != hashed({"enum": ["description"]})
    assert hashed({"required": ["a", "b"]}) == hashed({"required": ["b", "a"]})


class In(BaseModel):
    a: int


def revised(body: str, **options: Any) -> Function[Any, Any]:
    namespace: dict[str, Any] = {"function": function, "In": In, "options": options, "__name__": "m"}
    exec(f"@function(**options)\ndef fn(input: In) -> int:\n    {body}\n", namespace)
    return namespace["fn"]


def test_a_revision_names_everything_else():
    plain = revised("return input.a")
    assert re.fullmatch(r"[0-9a-f]{32}", plain.manifest.revision)
    others = [
        revised("return input.a + 1"),
        revised("return input.a + 2"),
        revised("return input.b"),
        revised("return [x for x in (1, 2)][input.a]"),
        revised("return [x for x in (1, 3)][input.a]"),
        revised("return input.a in {1, 2}"),
        revised('"""Documented."""; return input.a'),
        revised("return input.a", attempts=1),
        revised("return input.a", budget=Budget(hard=5)),
        revised("return input.a", examples=[{"a": 1}]),
    ]
    assert {other.manifest.interface for other in others} == {plain.manifest.interface}
    assert len({plain.manifest.revision, *(other.manifest.revision for other in others)}) == len(others) + 1


def test_a_revision_ignores_where_the_code_stands():
    assert revised("return input.a").manifest.revision == revised("\n\n    return input.a").manifest.revision


def test_a_revision_covers_helpers_and_loaders():
    def of(helper: int, loaded: int) -> str:
        source = f"""
def helper(): return {helper}
@model()
def load(device: Device) -> int: return {loaded}
@function()
def fn(input: int, *, number: int = uses(load)) -> int: return helper()
"""
        names: dict[str, Any] = {"function": function, "model": model, "uses": uses, "Device": Device}
        exec(source, names | {"__name__": "m"}, names := names | {"__name__": "m"})
        return names["fn"].manifest.revision

    assert of(1, 1) == of(1, 1)
    assert len({of(1, 1), of(1, 2)}) == 2


PROGRAM = """
from typing import Literal
from headrace import function
@function()
def fn(input: Literal["a", "b"]) -> bool:
    return input in {"a", "b", "c", "d"} or (lambda: input in {"x", "y"})()
print(fn.manifest.interface, fn.manifest.revision)
"""


def test_hashes_are_the_same_in_every_process():
    seen = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


def test_literals_stay_apart():
    assert takes(Literal["a"]).manifest.interface != takes(Literal["b"]).manifest.interface
