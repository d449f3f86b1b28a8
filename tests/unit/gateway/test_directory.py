from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from headrace.domain import Budget, Cost, Limits, Manifest
from headrace.gateway.directory import Directory, ServedFunction
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.registry import Registry
from headrace.sdk.schemas import input_schema

METRICS = GatewayMetrics()
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 5},
        "n": {"type": "integer", "minimum": 0},
        "when": {"type": "string", "format": "date-time"},
        "kind": {"enum": ["a", "b"]},
        "parts": {"type": "array", "items": {"type": "object", "required": ["a/b~c"]}},
        "a/b": {"type": "integer"},
        "m~n": {"type": "integer"},
    },
    "required": ["text"],
    "additionalProperties": False,
}


class Leaf(BaseModel):
    kind: Literal["leaf"]
    value: int


class Sum(BaseModel):
    kind: Literal["sum"]
    left: Expression
    right: Expression | None = None


class Product(BaseModel):
    kind: Literal["product"]
    left: Expression


Expression = Annotated[Sum | Product | Leaf, Field(discriminator="kind")]


def manifest(
    schema: Any = SCHEMA, name: str = "echo", revision: str = "r", interface: str = "1234"
) -> Manifest:
    return Manifest(
        name=name,
        interface=interface,
        revision=revision,
        description="",
        input_schema=schema,
        output_schema={},
        budget=Budget(),
        limits=Limits(),
        attempts=1,
        concurrency=1,
        cost=Cost(),
        pool="default",
        examples=[],
    )


def served(schema: Any = SCHEMA) -> ServedFunction:
    return ServedFunction(manifest(schema), METRICS.of("echo"))


def refused(value: Any, schema: Any = SCHEMA) -> Problem:
    with pytest.raises(Problem) as caught:
        served(schema).check(value, len(json.dumps(value)))
    assert caught.value.code == "invalid-input"
    return caught.value


def errors(value: Any, schema: Any = SCHEMA) -> list[tuple[str, str]]:
    return [(error["path"], error["message"]) for error in refused(value, schema).extra["errors"]]  # type: ignore[attr-defined]


def test_a_valid_input_passes() -> None:
    served().check({"text": "hello", "n": 3, "when": "2026-01-02T03:04:05Z", "kind": "a", "a/b": 1}, 99)
    served().check({"text": "", "n": 1.0}, 99)  # an integer by JSON Schema


def test_each_fault_has_its_own_place() -> None:
    found = errors({"n": -1, "a/b": "x", "m~n": "x", "extra": 1, "o/d~d": 2, "parts": [{"a/b~c": 1}, {}, 7]})
    assert dict(found).keys() == {
        *("/text", "/n", "/a~1b", "/m~0n", "/extra", "/o~1d~0d", "/parts/1/a~1b~0c", "/parts/2"),
    }
    assert dict(found)["/text"] == "this field is required"
    assert dict(found)["/extra"] == "no such field"


def test_the_detail_names_the_first_and_counts_the_others() -> None:
    assert refused({"text": 3}).detail.startswith("at /text: ")
    assert refused({"text": 3, "x": 1, "y": 2}).detail.endswith("(and 2 more)")
    assert not refused([]).detail.startswith("at ")  # the input as a whole
    assert errors([])[0][0] == ""


@pytest.mark.parametrize(
    "value",
    [
        {"text": "SECRET"},
        {"text": ["SECRET"]},
        {"text": "a", "kind": "SECRET"},
        {"text": "a", "when": "SECRET"},
        {"text": "a", "parts": "SECRET"},
        {"text": "a", "n": "SECRET"},
        "SECRET",
    ],
)
def test_what_was_sent_is_not_in_the_answer(value: Any) -> None:
    found = refused(value)
    assert "SECRET" not in found.body().decode()
    assert found.detail


@given(
    st.dictionaries(
        st.sampled_from(["text", "n", "when", "kind", "parts"]),
        st.just("SECRET-1") | st.just(["SECRET-1", {"SECRET-1": 1.5}]) | st.just(123456789.5),
        min_size=1,
    )
)
def test_no_keyword_of_the_schema_repeats_a_value(value: dict[str, Any]) -> None:
    body = refused(value).body().decode()
    assert "SECRET" not in body
    assert "123456789" not in body


def test_formats_are_asserted_and_types_are_strict() -> None:
    assert errors({"text": "a", "when": "yesterday"})[0][0] == "/when"
    assert errors({"text": "a", "n": "3"})[0][0] == "/n"
    assert errors({"text": "a", "n": True})[0][0] == "/n"
    assert errors({"text": "a", "n": 1.5})[0][0] == "/n"


def test_errors_are_capped_however_many_there_are() -> None:
    schema = {"type": "array", "items": {"type": "string"}}
    assert len(errors(list(range(19)), schema)) == 19
    assert len(errors(list(range(1000)), schema)) == 20
    many = {"text": "a"} | {f"x{number}": 1 for number in range(1000)}
    assert len(errors(many)) == 20
    assert refused(many).detail.endswith("(and 999 more)")


def test_a_body_of_nothing_but_faults_is_refused_quickly() -> None:
    value = json.loads("[" + "1," * 500_000 + "1]")  # a mebibyte
    function = served({"type": "array", "items": {"type": "string"}})
    began = time.process_time()
    with pytest.raises(Problem):
        function.check(value, 2**20)
    assert time.process_time() - began < 0.5


def test_what_an_enumeration_allows_is_told() -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b", "\u00e4", 4]}}
    assert errors(["a", "x"], schema) == [("/1", 'the value is not one of "a", "b", "\u00e4", 4')]
    many = errors("x", {"enum": [f"one{number}" for number in range(65)]})
    assert many == [("", 'the value is not one of "one0", "one1" or 63 other candidates')]


def test_which_fields_a_choice_is_about_is_told() -> None:
    inner = {"type": "object", "anyOf": [{"required": ["x", "y"]}, {"required": ["z"]}]}
    both = {
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        "properties": {"c": {"$ref": "#/$defs/inner"}},
    }
    schema = {**both, "$defs": {"inner": inner}}
    assert errors({}, schema) == [("", "exactly one of a, b is needed")]
    assert errors({"a": 1, "b": 1}, schema) == [("", "only one of a, b may be given")]
    assert errors({"a": 1, "c": {"x": 1}}, schema) == [("/c", "one of x and y, z is needed")]
    typed = {"oneOf": [{"required": ["a"]}, {"type": "string"}]}
    assert "needed" not in errors({}, typed)[0][1]
    together = {"not": {"required": ["a", "b"]}}
    assert errors({"a": 1, "b": 1}, together) == [("", "a and b can't be given together")]
    assert errors(1, {"not": {"type": "integer"}}) != errors({"a": 1, "b": 1}, together)


@pytest.mark.parametrize("count", [1000, 100_000])
def test_of_a_large_body_the_first_fault_is_told(count: int) -> None:
    schema = {"type": "array", "items": {"type": "string"}}
    good = ["a" * 20] * count
    served(schema).check(good, 24 * count)
    assert [path for path, _ in errors([*good, 1, 2], schema)] == [f"/{count}"]


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


NODE = {"$ref": "#/$defs/node"}
UNIONS: dict[str, Any] = {
    "tagged": {
        "oneOf": [
            obj(child=NODE, kind={"const": "a"}),
            obj(child=NODE, kind={"const": "b"}),
            {"type": "integer"},
        ]
    },
    "untagged": {"anyOf": [obj(child=NODE, n={"type": "null"}), obj(child={"anyOf": [NODE]})]},
    "listed": {"anyOf": [obj(child={"type": "array", "items": NODE}), obj(child=NODE), {"$ref": "#"}]},
    "doubled": {"allOf": [obj(child=NODE), obj(child=NODE), {"type": "object"}]},
}


@pytest.mark.parametrize("union", list(UNIONS))
def test_a_deep_value_of_a_recursive_union_is_refused_quickly(union: str) -> None:
    value: Any = "wrong"
    for level in range(60):
        value = {"child": value, "kind": "ab"[level % 2]}
    schema = {**obj(tree=NODE, n={"type": "integer"}), "$defs": {"node": UNIONS[union]}, "required": ["n"]}
    began = time.process_time()
    assert errors({"tree": value, "n": 1}, schema) == [
        ("", "the input doesn't satisfy the function's schema")
    ]
    assert time.process_time() - began < 0.3
    assert ("/n", "this field is required") in errors({"tree": value}, schema)  # what isn't in a union


def test_a_recursive_function_of_pydantics_is_refused_quickly() -> None:
    value: Any = {"kind": "leaf", "value": "x"}
    for level in range(60):
        value = {"kind": ("sum", "product")[level % 2], "left": value}
    schema = input_schema(TypeAdapter[Any](Expression))
    began = time.process_time()
    assert errors(value, schema)[0][0] == ""
    assert time.process_time() - began < 0.3


def test_a_tree_without_unions_keeps_its_messages() -> None:
    node = obj(items={"type": "array", "items": NODE}, n={"type": "integer"})
    schema = {**NODE, "$defs": {"node": node}}
    assert errors({"items": [{"items": [{"n": "x"}]}]}, schema)[0][0] == "/items/0/items/0/n"


def test_a_bushy_tree_on_a_long_stem_is_refused_quickly() -> None:
    optional = {"anyOf": [NODE, {"type": "null"}]}
    schema = {**NODE, "$defs": {"node": obj(left=optional, right=optional, n={"type": "integer"})}}
    value: Any = {"n": "x"}
    for _ in range(9):
        value = {"left": value, "right": value}
    for _ in range(80):
        value = {"left": value}
    function = served(schema)
    began = time.process_time()
    with pytest.raises(Problem, match="doesn't satisfy"):
        function.check(value, 2**13)
    assert time.process_time() - began < 0.3


def test_of_a_large_body_faults_in_a_union_are_not_gathered() -> None:
    schema = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
    value = [1] * 500_000
    function = served(schema)
    began = time.process_time()
    with pytest.raises(Problem, match="doesn't satisfy"):
        function.check(value, 2**20)
    assert time.process_time() - began < 0.5


def registry(*manifests: Manifest, retired: dict[str, datetime] | None = None) -> Registry:
    return Registry(
        functions={one.name: one for one in manifests},
        retired=retired or {},
        registered={},
        runners=[],
        draining=frozenset(),
        metrics={},
    )


def test_an_unchanged_function_keeps_what_was_compiled() -> None:
    directory = Directory(METRICS)
    directory.update(registry(manifest(), manifest(name="nap")))
    echo, nap = directory.find("echo"), directory.find("nap")
    changed = manifest({"type": "object"}, name="nap", revision="r2")
    directory.update(registry(manifest(), changed))  # equal, but another object
    assert directory.find("echo") is echo
    assert directory.find("nap") is not nap
    directory.find("nap").check({}, 2)
    assert directory.manifests == {"echo": manifest(), "nap": changed}


def test_what_is_gone_is_unknown_and_what_was_retired_says_when() -> None:
    directory = Directory(METRICS)
    when = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    directory.update(registry(manifest()))
    directory.update(registry(retired={"echo": when}))
    with pytest.raises(Problem) as caught:
        directory.find("echo")
    assert (caught.value.code, caught.value.status) == ("function-retired", 410)
    assert "2026-01-02T03:04:05+00:00" in caught.value.detail
    for name in ("never", "", "ECHO", "echo/x"):
        with pytest.raises(Problem) as caught:
            directory.find(name)
        assert (caught.value.code, caught.value.status) == ("unknown-function", 404)
    directory.update(registry(manifest()))  # registered anew
    assert directory.find("echo").manifest == manifest()


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "nonsense"},
        {"$ref": "#/$defs/none"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/hostname"},
    ],
)
def test_a_schema_that_cannot_be_used_takes_nothing_else_with_it(
    broken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    directory = Directory(METRICS)
    for _ in range(3):
        directory.update(registry(manifest(broken), manifest(name="nap")))
    assert directory.manifests == {"nap": manifest(name="nap")}
    (told,) = caplog.messages  # once, not at each reading
    assert told.startswith("the registered schema of echo can't be used: ")

    directory.update(registry(manifest()))
    directory.update(registry(manifest(broken), manifest(name="nap")))
    assert directory.manifests == {"echo": manifest(), "nap": manifest(name="nap")}  # as it was known


def test_the_newest_interface_with_a_link_is_served() -> None:
    linked: set[str] = set()
    directory = Directory(METRICS, lambda name, interface: f"{name} {interface}" in linked)
    old, new, newest = (manifest(revision=one, interface=one) for one in ("old", "new", "newest"))

    def now(*interfaces: str) -> str:
        linked.clear()
        linked.update(f"echo {one}" for one in interfaces)
        directory.choose()
        return directory.find("echo").manifest.interface

    directory.update(registry(old))
    assert now() == now("old") == "old"
    directory.update(registry(new))  # before its runner is linked
    assert directory.find("echo").manifest is old
    assert now("old", "new") == "new"
    directory.update(registry(newest))
    assert now("old", "new") == "new"
    assert now("old", "new", "newest") == "newest"
    assert now("old") == "old"  # the others' runners have left
    assert now() == now("other") == "newest"

    edited = manifest(revision="edited", interface="old")  # a roll-back, with another text
    directory.update(registry(edited))
    assert now("old", "newest") == "old"
    assert directory.find("echo").manifest is edited
    assert now("newest") == "newest"
    directory.update(registry(retired={"echo": datetime(2026, 1, 2, tzinfo=UTC)}))
    directory.update(registry(edited))
    assert now("newest") == "old"  # what was retired is forgotten


def test_few_interfaces_are_kept() -> None:
    directory = Directory(METRICS, lambda _, interface: interface == "0")
    served: list[str] = []
    for number in range(6):
        directory.update(registry(manifest(interface=str(number))))
        served.append(directory.find("echo").manifest.interface)
    assert served == ["0", "0", "0", "0", "4", "5"]


@pytest.mark.parametrize(("cost", "price"), [(Cost(), 1.0), (Cost.chars("text", 2.0), 6.0)])
def test_what_an_input_costs_is_the_manifests_word_whether_it_varies_or_not(cost: Cost, price: float) -> None:
    function = ServedFunction(msgspec.structs.replace(manifest(), cost=cost), METRICS.of("echo"))
    assert function.cost_of({"text": "abc"}) == cost.of({"text": "abc"}) == price
    assert function.tells_cost == cost.varies
