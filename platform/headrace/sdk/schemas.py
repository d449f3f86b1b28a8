"""JSON Schemas of inputs and outputs (draft 2020-12), and the hash that names an interface."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import jsonschema_rs
import msgspec
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import core_schema

HASH_LENGTH: Final = 32
"""Characters of a hash in a manifest: 128 bits."""

_ANNOTATIONS: Final = {"title", "description", "examples"}
_SCHEMAS_BY_NAME: Final = {"properties", "patternProperties", "$defs", "dependentSchemas"}
_SCHEMA_LISTS: Final = {"allOf", "anyOf", "oneOf", "prefixItems"}
_SCHEMAS: Final = {
    "items",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
}


class ClosedJsonSchema(GenerateJsonSchema):
    """Objects with named fields refuse other fields, unless their type says what to do with them.

    Pydantic ignores unknown fields by default; a misspelt optional field would be ignored silently.
    """

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Close a pydantic model; a root model isn't an object with fields."""
        found = super().model_schema(schema)
        return found if schema.get("root_model") else _closed(found, schema["cls"].model_config)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Close a dataclass."""
        return _closed(super().dataclass_schema(schema), getattr(schema["cls"], "__pydantic_config__", None))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """Close a TypedDict."""
        return _closed(
            super().typed_dict_schema(schema), getattr(schema.get("cls"), "__pydantic_config__", None)
        )


def _closed(found: JsonSchemaValue, config: Mapping[str, Any] | None) -> JsonSchemaValue:
    if found.get("type") == "object" and "extra" not in (config or {}):
        found.setdefault("additionalProperties", False)
    return found


def input_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """What callers must send."""
    return adapter.json_schema(mode="validation", schema_generator=ClosedJsonSchema)


def output_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """What callers get."""
    return adapter.json_schema(mode="serialization")


def compiled(schema: dict[str, Any], *, mask: str | None = None) -> jsonschema_rs.Draft202012Validator:
    """The validator of a schema, formats included; `mask` stands for the value in its messages.

    Raises:
        ValueError: it isn't a schema, or refers to something outside of itself.
    """
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True, mask=mask, retriever=_refuse)


def _refuse(uri: str) -> NoReturn:
    # Left alone, the library would fetch it, from the network or from this machine's files.
    raise ValueError("schemas can't refer to other documents")


def interface_hash(
    input_schema: dict[str, Any], output_schema: dict[str, Any], item_schema: dict[str, Any] | None = None
) -> str:
    """The name of an interface: equal for schemas that differ in titles, descriptions and examples only."""
    schemas = (
        [input_schema, output_schema] if item_schema is None else [input_schema, output_schema, item_schema]
    )
    return short_hash([_bare(schema) for schema in schemas])


def short_hash(value: object) -> str:
    """A hash of plain data, the same whatever the order of its keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:HASH_LENGTH]


def _bare(schema: Any) -> Any:
    """A schema without its annotations. Only where a schema stands: a property may be called `title`."""
    if not isinstance(schema, dict):
        return schema  # `true` and `false` are schemas too
    bare: dict[str, Any] = {}
    for keyword, value in cast("dict[str, Any]", schema).items():
        if keyword in _ANNOTATIONS:
            continue
        if keyword in _SCHEMAS_BY_NAME:
            bare[keyword] = {name: _bare(one) for name, one in value.items()}
        elif keyword in _SCHEMA_LISTS:
            bare[keyword] = [_bare(one) for one in value]
        elif keyword in _SCHEMAS:
            bare[keyword] = _bare(value)
        elif keyword == "required":
            bare[keyword] = sorted(value)
        else:
            bare[keyword] = value
    return bare
