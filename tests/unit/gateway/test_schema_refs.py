from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from headrace.gateway.schema_refs import component_name, lift

NODE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "next": {"$ref": "#"},
        "leaf": {"$ref": "#/$defs/Leaf"},
        "twin": {"$ref": "#/properties/leaf"},
    },
    "$defs": {
        "Leaf": {"type": "object", "properties": {"up": {"$ref": "#/$defs/Leaf"}, "n": {"type": "integer"}}},
    },
}


def test_definitions_become_components_and_references_follow() -> None:
    assert lift(NODE, "f.input") == {
        "f.input": {
            "type": "object",
            "properties": {
                "next": {"$ref": "#/components/schemas/f.input"},
                "leaf": {"$ref": "#/components/schemas/f.input.Leaf"},
                "twin": {"$ref": "#/components/schemas/f.input/properties/leaf"},
            },
        },
        "f.input.Leaf": {
            "type": "object",
            "properties": {"up": {"$ref": "#/components/schemas/f.input.Leaf"}, "n": {"type": "integer"}},
        },
    }


def test_the_lifted_schema_means_the_same() -> None:
    document = {"components": {"schemas": lift(NODE, "f.input")}, "$ref": "#/components/schemas/f.input"}
    before, after = jsonschema_rs.validator_for(NODE), jsonschema_rs.validator_for(document)
    for value in (
        {"next": {"leaf": {"up": {"n": 1}}}},
        {"next": {"leaf": {"up": {"n": "1"}}}},
        {"twin": {"n": 1.5}},
        {"next": []},
    ):
        assert before.is_valid(value) == after.is_valid(value)
    assert not after.is_valid({"next": {"twin": {"up": {"n": "1"}}}})


def test_the_original_is_left_alone() -> None:
    before = repr(NODE)
    lift(NODE, "f.input")
    assert repr(NODE) == before


def test_what_only_looks_like_a_reference_stays() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"$ref": {"type": "string"}, "default": {"$ref": "#/$defs/A"}},
        "const": {"$ref": "#/$defs/A"},
        "examples": [{"$ref": "#/$defs/A"}],
        "default": {"$ref": "#/$defs/A"},
        "$defs": {"A": {"$ref": "https://elsewhere.example/schema"}},
    }
    assert lift(schema, "f.input") == {
        "f.input": {
            "properties": {
                "$ref": {"type": "string"},
                "default": {"$ref": "#/components/schemas/f.input.A"},
            },
            "const": {"$ref": "#/$defs/A"},
            "examples": [{"$ref": "#/$defs/A"}],
            "default": {"$ref": "#/$defs/A"},
        },
        "f.input.A": {"$ref": "https://elsewhere.example/schema"},
    }


def test_a_discriminator_follows_too() -> None:
    schema = {
        "oneOf": [{"$ref": "#/$defs/Cat"}],
        "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat"}},
        "$defs": {"Cat": {}},
    }
    lifted = lift(schema, "f.input")["f.input"]
    assert lifted["discriminator"] == {
        "propertyName": "kind",
        "mapping": {"cat": "#/components/schemas/f.input.Cat"},
    }


def test_names_that_fall_together_are_told_apart() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/Page[int]"}, "b": {"$ref": "#/$defs/Page~1int~1"}},
        "$defs": {"Page[int]": {"title": "one"}, "Page/int/": {"title": "two"}},
    }
    lifted = lift(schema, "f.input")
    a, b = (lifted["f.input"]["properties"][key]["$ref"].rpartition("/")[2] for key in "ab")
    assert lifted[a] == {"title": "one"}
    assert lifted[b] == {"title": "two"}


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"$defs": {}}])
def test_small_schemas(schema: dict[str, Any]) -> None:
    assert list(lift(schema, "f.output")) == ["f.output"]


def test_component_names_hold_only_what_is_allowed() -> None:
    assert component_name("my-fn", "input", "Page[str | None]") == "my-fn.input.Page_str___None_"
