from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.domain import Budget, Cost, Limits, Manifest
from headrace.gateway.directory import Directory, ServedFunction
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.registry import Registry

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


def manifest(schema: Any = SCHEMA, name: str = "echo", revision: str = "r") -> Manifest:
    return Manifest(
        name=name,
        interface="1234",
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


@pytest.mark.parametrize("count", [1000, 100_000])
def test_of_a_large_body_the_first_fault_is_told(count: int) -> None:
    schema = {"type": "array", "items": {"type": "string"}}
    good = ["a" * 20] * count
    served(schema).check(good, 24 * count)
    assert [path for path, _ in errors([*good, 1, 2], schema)] == [f"/{count}"]


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
    assert not directory.is_loaded
    directory.update(registry(manifest(), manifest(name="nap")))
    assert directory.is_loaded
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
