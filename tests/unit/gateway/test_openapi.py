from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import schemathesis
import schemathesis.specs.openapi.schemas  # at the start: inside a test the import of so much can fail

from headrace.domain import Budget, Cost, Limits, Manifest
from headrace.gateway.openapi import build_document
from headrace.gateway.openapi_jobs import ASKING_PROBLEMS
from headrace.gateway.problem_kinds import KINDS

PAIR = {
    "type": "object",
    "title": "Pair",
    "required": ["a"],
    "additionalProperties": False,
    "properties": {"a": {"$ref": "#/$defs/Text"}, "b": {"$ref": "#/$defs/Text"}},
    "$defs": {"Text": {"type": "string", "maxLength": 10}},
}


def manifest(name: str, **changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "name": name,
        "interface": "i1",
        "revision": "r1",
        "description": "Compares two texts.\n\nAnd says how.",
        "input_schema": PAIR,
        "output_schema": {"type": "number"},
        "budget": Budget(sync=3, hard=9),
        "limits": Limits(input="2KiB"),
        "attempts": 2,
        "concurrency": 1,
        "cost": Cost(),
        "pool": "default",
        "examples": [{"a": "x"}],
    }
    return Manifest(**values | changes)


def document(*manifests: Manifest, public_url: str = "") -> dict[str, Any]:
    built = build_document({one.name: one for one in manifests}, public_url=public_url, version="1.2.3")
    return msgspec.json.decode(msgspec.json.encode(built))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for child in value.values():
            yield from references(child)
    elif isinstance(value, list):
        for child in value:
            yield from references(child)


@pytest.mark.parametrize(
    "manifests",
    [(), (manifest("score"),), (manifest("score"), manifest("a-b_c", examples=[], description=""))],
    ids=["none", "one", "two"],
)
def test_the_document_is_openapi_3_1(manifests: tuple[Manifest, ...]) -> None:
    built = document(*manifests)
    assert built["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(json.loads(json.dumps(built))).validate()
    for schema in built["components"]["schemas"].values():
        jsonschema_rs.Draft202012Validator({"components": built["components"], **schema})


def test_every_reference_leads_somewhere() -> None:
    built = document(manifest("score"), manifest("rank"))
    found = set(references(built))
    assert "#/components/schemas/score.input.Text" in found
    for reference in found:
        target: Any = built
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


def test_operation_ids_are_unique() -> None:
    built = document(*map(manifest, ("function", "functions", "problem", "problems", "a-b", "a_b")))
    ids = [operation["operationId"] for item in built["paths"].values() for operation in item.values()]
    assert len(ids) == len(set(ids))


def test_a_function_is_one_path() -> None:
    built = document(manifest("score"))
    call = built["paths"]["/fn/score"]["post"]
    assert call["summary"] == "Compares two texts."
    assert call["security"] == [{"key": []}]
    body = call["requestBody"]
    assert body["required"] is True
    assert "2,048 bytes" in body["description"]
    content = body["content"]["application/json"]
    assert content["examples"] == {"example-1": {"value": {"a": "x"}}}
    assert content["schema"] == {"$ref": "#/components/schemas/score.input"}
    assert built["components"]["schemas"]["score.input"]["required"] == ["a"]
    answer = call["responses"]["200"]["content"]["application/json"]
    assert answer["schema"] == {"$ref": "#/components/schemas/score.output"}
    assert "x-item-schema" not in call["responses"]["200"]["content"]["text/event-stream"]
    assert call["x-headrace"]["budget"]["hard"] == 9
    assert call["x-headrace"]["limits"] == {"input": 2048, "output": 16 * 2**20}


def test_a_function_that_streams_has_a_schema_of_its_items() -> None:
    built = document(manifest("tell", item_schema=PAIR))
    answer = built["paths"]["/fn/tell"]["post"]["responses"]["200"]["content"]["text/event-stream"]
    assert answer["x-item-schema"] == {"$ref": "#/components/schemas/tell.item"}
    assert {"tell.item", "tell.item.Text"} <= built["components"]["schemas"].keys()


def test_every_status_of_a_call_names_its_codes() -> None:
    built = document(manifest("score"))
    responses = built["paths"]["/fn/score"]["post"]["responses"]
    named: list[str] = []
    for status, reference in responses.items():
        if status in {"200", "202", "204"}:
            continue
        answer = built["components"]["responses"][reference["$ref"].rpartition("/")[2]]
        codes = answer["content"]["application/problem+json"]["schema"]["properties"]["code"]["enum"]
        assert {KINDS[code].status for code in codes} == {int(status)}
        assert ("Retry-After" in answer["headers"]) == (status in {"429", "503"})
        assert ("RateLimit" in answer["headers"]) == (status == "429")
        assert ("WWW-Authenticate" in answer["headers"]) == (status in {"401", "403"})
        named += codes
    # Only what can't come from a call of a known function with the right method is missing.
    assert set(KINDS) - set(named) == {"not-found", "method-not-allowed", *ASKING_PROBLEMS}


def test_two_functions_keep_their_types_apart() -> None:
    other = {**PAIR, "$defs": {"Text": {"type": "string", "maxLength": 99}}}
    built = document(manifest("score"), manifest("rank", input_schema=other))
    schemas = built["components"]["schemas"]
    assert schemas["score.input.Text"]["maxLength"] == 10
    assert schemas["rank.input.Text"]["maxLength"] == 99


@pytest.mark.parametrize(("max_hold", "hold"), [(55, 3), (2, 2)])
def test_the_hold_is_the_least_of_budget_and_gateway(max_hold: float, hold: float) -> None:
    built = build_document({"score": manifest("score")}, version="1.2.3", max_hold=max_hold)
    assert built["paths"]["/fn/score"]["post"]["x-headrace"]["budget"]["hold"] == hold


@pytest.mark.parametrize(
    ("public_url", "server"),
    [("", "/"), ("https://ai.example/x", "https://ai.example/x"), ("https://a/", "https://a")],
)
def test_the_server_is_the_public_url(public_url: str, server: str) -> None:
    assert document(public_url=public_url)["servers"] == [{"url": server}]
