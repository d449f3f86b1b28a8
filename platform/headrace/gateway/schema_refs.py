"""Moving a JSON Schema into a document's components, with unique names and rewritten references."""

from __future__ import annotations

import re
from typing import Any, Final, cast

from headrace.gateway.schema_parts import COMPONENTS

Schema = dict[str, Any]

_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9._-]")

# Below these keys a mapping's keys are names of the author's choice, and its values are schemas.
_NAMED_SCHEMAS: Final = frozenset(
    {"$defs", "definitions", "properties", "patternProperties", "dependentSchemas"}
)
# Below these keys are values, which may look like schemas and aren't.
_VALUES: Final = frozenset({"const", "default", "enum", "example", "examples"})


def component_name(*parts: str) -> str:
    """A component's name: the parts joined by dots, without the characters that are not allowed in one."""
    return ".".join(_NOT_IN_A_NAME.sub("_", part) for part in parts)


def lift(schema: Schema, name: str) -> dict[str, Schema]:
    """The schema as the component `name`, and each of its definitions as a component of its own.

    Every function's components start with its own name and no function's name holds a dot, so that no two
    functions' components collide.
    """
    definitions: dict[str, Schema] = schema.get("$defs", {})
    names = _unique_names(name, definitions)
    root = {key: value for key, value in schema.items() if key not in {"$defs", "$schema"}}
    lifted = {name: _rewrite(root, name, names)}
    for key, definition in definitions.items():
        lifted[names[key]] = _rewrite(definition, name, names)
    return lifted


def _unique_names(name: str, definitions: dict[str, Schema]) -> dict[str, str]:
    names: dict[str, str] = {}
    taken: set[str] = set()
    for key in definitions:
        candidate = wanted = component_name(name, key)
        number = 2
        while candidate in taken:
            candidate = f"{wanted}-{number}"
            number += 1
        taken.add(candidate)
        names[key] = candidate
    return names


def _rewrite(schema: Any, root: str, names: dict[str, str]) -> Any:
    if isinstance(schema, list):
        return [_rewrite(item, root, names) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    rewritten: Schema = {}
    for key, value in cast("Schema", schema).items():
        if key in {"$ref", "$dynamicRef"} and isinstance(value, str):
            rewritten[key] = _target(value, root, names)
        elif key == "discriminator" and isinstance(value, dict):
            rewritten[key] = _discriminator(cast("Schema", value), root, names)
        elif key in _NAMED_SCHEMAS and isinstance(value, dict):
            inner = cast("Schema", value)
            rewritten[key] = {field: _rewrite(child, root, names) for field, child in inner.items()}
        elif key in _VALUES:
            rewritten[key] = value
        else:
            rewritten[key] = _rewrite(value, root, names)
    return rewritten


def _discriminator(value: Schema, root: str, names: dict[str, str]) -> Schema:
    mapping = value.get("mapping")
    if not isinstance(mapping, dict):
        return value
    targets = {tag: _target(str(ref), root, names) for tag, ref in cast("Schema", mapping).items()}
    return {**value, "mapping": targets}


def _target(reference: str, root: str, names: dict[str, str]) -> str:
    """Where a reference of the original schema points to in the document; foreign ones stay."""
    if reference == "#":
        return COMPONENTS + root
    if not reference.startswith("#/"):
        return reference
    first, *rest = reference[2:].split("/")
    if first == "$defs" and rest:
        definition = rest[0].replace("~1", "/").replace("~0", "~")
        if definition in names:
            return "/".join([COMPONENTS + names[definition], *rest[1:]])
    return f"{COMPONENTS}{root}/{reference[2:]}"
