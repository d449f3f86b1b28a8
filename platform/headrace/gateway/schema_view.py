"""A JSON Schema as a human reads it: a table of fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.gateway.schema_parts import Schema, Schemas, Seen, inner, options, properties, resolve

_DEEPEST: Final = 8
_MOST_ROWS: Final = 200
_COUNTS: Final = (
    ("minLength", "maxLength", "characters"),
    ("minItems", "maxItems", "items"),
    ("minProperties", "maxProperties", "fields"),
)
_BOUNDS: Final = (
    ("minimum", "≥ {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMaximum", "< {}"),
    ("multipleOf", "a multiple of {}"),
    ("pattern", "matches {}"),
    ("default", "default {}"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the table.

    Args:
        depth: how far it is indented.
        name: the field's name; empty for the value as a whole.
        type: what it holds, in words.
        required: whether it must be there.
        bounds: its limits, in words.
        description: what its author wrote.
    """

    depth: int
    name: str
    type: str
    required: bool
    bounds: tuple[str, ...]
    description: str


def fields(schemas: Schemas, name: str) -> list[Field]:
    """The table of the component `name`; what refers to itself is shown once."""
    rows: list[Field] = []
    root, seen = resolve(schemas, schemas[name], (name,))
    if not properties(root):
        rows.append(_field(schemas, 0, "", schemas[name], required=True))
    for row in _rows(schemas, root, 0, seen):
        rows.append(row)
        if len(rows) == _MOST_ROWS:
            rows.append(Field(0, "…", "more fields, in the JSON Schema below", False, (), ""))
            break
    return rows


def _rows(schemas: Schemas, schema: Schema, depth: int, seen: Seen) -> Iterator[Field]:
    required = schema.get("required", ())
    named = properties(schema)
    for name, child in named.items():
        yield _field(schemas, depth, name, child, required=name in required)
        yield from _below(schemas, child, depth, seen)
    if not named:
        yield from _below(schemas, schema, depth, seen)


def _below(schemas: Schemas, schema: Schema, depth: int, seen: Seen) -> Iterator[Field]:
    """The fields of the objects within: through references, arrays, maps and alternatives."""
    resolved, seen = resolve(schemas, schema, seen)
    if len(seen) > len(set(seen)) or depth >= _DEEPEST:
        return
    if properties(resolved):
        yield from _rows(schemas, resolved, depth + 1, seen)
        return
    within = inner(resolved, "items") or inner(resolved, "additionalProperties")
    if within is not None:
        yield from _below(schemas, within, depth, seen)
        return
    real = [option for option in options(resolved) if option.get("type") != "null"]
    for option in real:
        if len(real) == 1:
            yield from _below(schemas, option, depth, seen)
        elif rows := list(_below(schemas, option, depth + 1, seen)):
            yield Field(depth + 1, "", type_of(schemas, option), False, (), "")
            yield from rows


def _field(schemas: Schemas, depth: int, name: str, schema: Schema, *, required: bool) -> Field:
    resolved, _ = resolve(schemas, schema)
    merged: Mapping[str, Any] = {**resolved, **schema}
    bounds = [*_bounds(merged)]
    if (items := inner(merged, "items")) is not None:
        bounds += [f"each {bound}" for bound in _bounds(resolve(schemas, items)[0])]
    return Field(
        depth, name, type_of(schemas, schema), required, tuple(bounds), str(merged.get("description", ""))
    )


def _bounds(schema: Schema) -> Iterator[str]:
    for least, most, unit in _COUNTS:
        if least in schema and most in schema:
            yield f"{schema[least]:,} to {schema[most]:,} {unit}"
        elif least in schema:
            yield f"at least {schema[least]:,} {unit}"
        elif most in schema:
            yield f"at most {schema[most]:,} {unit}"
    for keyword, text in _BOUNDS:
        if keyword in schema:
            yield text.format(_json(schema[keyword]))


def type_of(schemas: Schemas, schema: Schema, depth: int = 0) -> str:
    """What a value holds, in words."""
    resolved, _ = resolve(schemas, schema)
    if depth > _DEEPEST:
        return "…"
    if "const" in resolved or "enum" in resolved:
        return " | ".join(map(_json, resolved.get("enum", [resolved.get("const")])))
    if alternatives := options(resolved):
        return " | ".join(dict.fromkeys(type_of(schemas, one, depth + 1) for one in alternatives))
    kind: object = resolved.get("type", "any value")
    container = {"array": ("items", "array"), "object": ("additionalProperties", "map")}.get(str(kind))
    if container is not None and not properties(resolved):
        within = inner(resolved, container[0])
        return str(kind) if within is None else f"{container[1]} of {type_of(schemas, within, depth + 1)}"
    if kind == "object" and depth:
        return str(resolved.get("title", kind))
    words = " | ".join(map(str, resolved["type"])) if isinstance(kind, list) else str(kind)
    return f"{words} ({resolved['format']})" if "format" in resolved else words


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
