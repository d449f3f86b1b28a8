"""Reading the parts of a JSON Schema whose references point into a document's components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

Schema = Mapping[str, Any]
Schemas = Mapping[str, Schema]
Seen = tuple[str, ...]
"""The components that a reading came through; a name that is in it twice means a circle."""

COMPONENTS: Final = "#/components/schemas/"
_LONGEST_CHAIN: Final = 8


def resolve(schemas: Schemas, schema: Schema, seen: Seen = ()) -> tuple[Schema, Seen]:
    """The schema behind references to whole components."""
    for _ in range(_LONGEST_CHAIN):
        reference = schema.get("$ref")
        name = reference.removeprefix(COMPONENTS) if isinstance(reference, str) else None
        if name is None or name not in schemas:
            break
        schema, seen = schemas[name], (*seen, name)
    return schema, seen


def inner(schema: Schema, keyword: str) -> Schema | None:
    """The schema below a keyword; True and False, which are schemas too, have nothing to show."""
    found = schema.get(keyword)
    return cast("Schema", found) if isinstance(found, dict) and found else None


def properties(schema: Schema) -> Schemas:
    """An object's fields by name."""
    named = inner(schema, "properties") or {}
    return {name: child for name in named if (child := inner(named, name)) is not None}


def options(schema: Schema) -> list[Schema]:
    """The alternatives, or the parts, that a schema consists of."""
    found: list[Any] = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or []
    return [option for option in found if isinstance(option, dict)]
