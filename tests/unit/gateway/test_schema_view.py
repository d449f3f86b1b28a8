from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from headrace.gateway.schema_example import example
from headrace.gateway.schema_refs import lift
from headrace.gateway.schema_view import fields

PLACE: dict[str, Any] = {
    "type": "object",
    "title": "Place",
    "required": ["lat"],
    "properties": {
        "lat": {"type": "number", "minimum": -90, "maximum": 90, "description": "Degrees."},
        "note": {"type": "string", "default": ""},
    },
}


def shown(schema: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(row.depth, row.name, row.type) for row in fields(lift(schema, "f.input"), "f.input")]


def test_a_field_shows_type_bounds_and_meaning() -> None:
    lat, note = fields(lift(PLACE, "f.input"), "f.input")
    assert (lat.name, lat.type, lat.required, lat.bounds) == ("lat", "number", True, ("≥ -90", "≤ 90"))
    assert lat.description == "Degrees."
    assert (note.required, note.bounds) == (False, ('default ""',))


def test_bounds_of_items_are_shown_with_the_list() -> None:
    schema = {
        "properties": {
            "texts": {
                "type": "array",
                "minItems": 1,
                "maxItems": 256,
                "items": {"type": "string", "maxLength": 32768},
            }
        }
    }
    (row,) = fields(lift(schema, "f.input"), "f.input")
    assert row.type == "array of string"
    assert row.bounds == ("1 to 256 items", "each at most 32,768 characters")


@pytest.mark.parametrize(
    "place",
    [
        {"$ref": "#/$defs/Place"},
        {"type": "array", "items": {"$ref": "#/$defs/Place"}},
        {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/Place"}},
    ],
    ids=["itself", "list", "optional", "map"],
)
def test_fields_within_are_indented(place: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"at": place}, "$defs": {"Place": PLACE}}
    at, *below = shown(schema)
    assert at[:2] == (0, "at")
    assert below == [(1, "lat", "number"), (1, "note", "string")]


def test_alternatives_are_shown_one_after_the_other() -> None:
    cat = {"type": "object", "title": "Cat", "properties": {"lives": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {"it": {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Place"}]}},
        "$defs": {"Place": PLACE, "Cat": cat},
    }
    assert shown(schema) == [
        (0, "it", "Cat | Place"),
        (1, "", "object"),
        (2, "lives", "integer"),
        (1, "", "object"),
        (2, "lat", "number"),
        (2, "note", "string"),
    ]


def test_a_type_that_holds_itself_ends() -> None:
    tree: dict[str, Any] = {
        "type": "object",
        "required": ["children"],
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
    }
    assert shown(tree) == [(0, "children", "array of object")]
    assert example(lift(tree, "f.input"), "f.input") == {"children": [None]}


def test_a_circle_of_references_ends() -> None:
    circle = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}
    assert len(shown(circle)) == 1
    assert example(lift(circle, "f.input"), "f.input") is None


def test_thousands_of_fields_are_cut() -> None:
    schema = {"type": "object", "properties": {f"f{n}": {"type": "null"} for n in range(5000)}}
    assert len(shown(schema)) == 201


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({}, "any value"),
        ({"type": "string", "format": "date-time"}, "string (date-time)"),
        ({"type": ["integer", "null"]}, "integer | null"),
        ({"enum": ["a", 1]}, '"a" | 1'),
        ({"const": None}, "null"),
        ({"type": "array"}, "array"),
        ({"type": "array", "items": True}, "array"),
        ({"type": "object"}, "object"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map of integer"),
        ({"anyOf": [{"type": "string"}, {"type": "string"}, {"type": "null"}]}, "string | null"),
    ],
)
def test_types_in_words(schema: dict[str, Any], kind: str) -> None:
    assert shown(schema)[0] == (0, "", kind)


@pytest.mark.parametrize(
    "schema",
    [
        PLACE,
        {"type": "array", "items": {"type": "integer", "minimum": 7}},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["x", "y"]},
        {"const": 3},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"type": ["number", "null"]},
    ],
)
def test_a_made_up_example_is_valid_for_plain_schemas(schema: dict[str, Any]) -> None:
    assert jsonschema_rs.is_valid(schema, example(lift(schema, "f.input"), "f.input"))
