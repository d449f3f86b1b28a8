"""A value that looks as a schema says, where the author gave no example: a hint, not always valid."""

from __future__ import annotations

from typing import Any, Final

from headrace.gateway.schema_parts import Schema, Schemas, Seen, inner, options, properties, resolve

_DEEPEST: Final = 8


def example(schemas: Schemas, name: str) -> Any:
    """A value for the component `name`."""
    return _sample(schemas, schemas[name], (name,), "text")


def _sample(schemas: Schemas, schema: Schema, seen: Seen, hint: str) -> Any:
    resolved, seen = resolve(schemas, schema, seen)
    for keyword in ("examples", "enum"):
        if resolved.get(keyword):
            return resolved[keyword][0]
    for keyword in ("default", "const"):
        if keyword in resolved:
            return resolved[keyword]
    if len(seen) > len(set(seen)) or len(seen) > _DEEPEST:
        return None
    if alternatives := options(resolved):
        return _sample(schemas, alternatives[0], seen, hint)
    return _by_type(schemas, resolved, seen, hint)


def _by_type(schemas: Schemas, schema: Schema, seen: Seen, hint: str) -> Any:
    kind: object = schema["type"][0] if isinstance(schema.get("type"), list) else schema.get("type", "object")
    if kind == "object":
        wanted = schema.get("required", ())
        return {
            name: _sample(schemas, child, seen, name)
            for name, child in properties(schema).items()
            if name in wanted
        }
    if kind == "array":
        items = inner(schema, "items")
        return [] if items is None else [_sample(schemas, items, seen, hint)]
    if kind in {"integer", "number"}:
        return schema.get("minimum", 1)
    return {"string": hint, "boolean": True}.get(str(kind))
