"""What the page `/docs` shows, read from the OpenAPI document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from headrace.gateway.problem_kinds import KINDS, Kind
from headrace.gateway.schema_example import example as example_of
from headrace.gateway.schema_parts import COMPONENTS
from headrace.gateway.schema_view import Field, fields

Json = Mapping[str, Any]

_LONGEST_EXAMPLE: Final = 2000


@dataclass(frozen=True, slots=True)
class Side:
    """The input, the output or the items of a function: the table and the JSON Schema as text."""

    fields: list[Field]
    schema: str


@dataclass(frozen=True, slots=True)
class FunctionReference:
    """One function's section.

    Args:
        name: the function's name.
        description: what its author wrote.
        facts: budgets and limits as label and value.
        examples: inputs as indented JSON, at least one.
        commands: what follows `curl` and the address for each example.
        input: what it takes.
        output: what it returns.
        item: what it streams, where it does.
    """

    name: str
    description: str
    facts: list[tuple[str, str]]
    examples: list[str]
    commands: list[str]
    input: Side
    output: Side
    item: Side | None


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the table of routes."""

    method: str
    path: str
    summary: str
    needs_key: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """One request header; without an example where it is of no use."""

    name: str
    example: str
    description: str


@dataclass(frozen=True, slots=True)
class Reference:
    """The whole page."""

    description: str
    functions: list[FunctionReference]
    routes: list[Route]
    parameters: list[Parameter]
    problems: Mapping[str, Kind]


# OpenAPI has no parameters for these.
_STANDARD_HEADERS: Final = (
    Parameter("Authorization", "Bearer hr_…", "The API key. Needed."),
    Parameter("Content-Type", "application/json", "Needed: this, or a `+json` type; UTF-8, uncompressed."),
    Parameter(
        "Accept",
        "application/json",
        "Where it is sent, it must allow `application/json`, or name `text/event-stream`: then the answer is "
        "written while the function runs.",
    ),
)


def describe(document: Json) -> Reference:
    """The reference for an OpenAPI document that `build_document` made."""
    components = document["components"]
    functions: list[FunctionReference] = []
    routes: list[Route] = []
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if "x-headrace" in operation:
                functions.append(_function(path.removeprefix("/fn/"), operation, components["schemas"]))
            routes.append(Route(method.upper(), path, operation["summary"], bool(operation.get("security"))))
    own = [
        Parameter(one["name"], str(one["example"]), one["description"])
        for one in components["parameters"].values()
    ]
    parameters = [*_STANDARD_HEADERS, *own]
    return Reference(document["info"]["description"], functions, routes, parameters, KINDS)


def _function(name: str, operation: Json, schemas: Json) -> FunctionReference:
    body = operation["requestBody"]["content"]["application/json"]
    answers = operation["responses"]["200"]["content"]
    input_name = body["schema"]["$ref"].removeprefix(COMPONENTS)
    output_name = answers["application/json"]["schema"]["$ref"].removeprefix(COMPONENTS)
    item = answers["text/event-stream"].get("x-item-schema")
    examples = [one["value"] for one in body.get("examples", {}).values()]
    examples = examples or [example_of(schemas, input_name)]
    return FunctionReference(
        name=name,
        description=operation["description"],
        facts=_facts(operation["x-headrace"]),
        examples=[_shortened(json.dumps(example, ensure_ascii=False, indent=2)) for example in examples],
        commands=[_command(example) for example in examples],
        input=_side(input_name, schemas),
        output=_side(output_name, schemas),
        item=None if item is None else _side(item["$ref"].removeprefix(COMPONENTS), schemas),
    )


def _side(name: str, schemas: Json) -> Side:
    shown = {one: schemas[one] for one in _reachable(name, schemas)}
    schema = shown[name] if len(shown) == 1 else shown
    return Side(fields(schemas, name), json.dumps(schema, ensure_ascii=False, indent=2))


def _reachable(name: str, schemas: Json) -> list[str]:
    """The component and all that it refers to, itself first."""
    found = [name]
    for one in found:
        found += [other for other in _referred(schemas[one]) if other in schemas and other not in found]
    return list(dict.fromkeys(found))


def _referred(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for item in cast("list[Any]", schema) for name in _referred(item)]
    if not isinstance(schema, dict):
        return []
    names: list[str] = []
    for key, value in cast("dict[str, Any]", schema).items():
        if key == "$ref" and isinstance(value, str):
            names.append(value.removeprefix(COMPONENTS).partition("/")[0])
        else:
            names += _referred(value)
    return names


def _command(example: Any) -> str:
    return f"-d {shlex.quote(_shortened(json.dumps(example, ensure_ascii=False)))}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_EXAMPLE else f"{text[:_LONGEST_EXAMPLE]}…"


def _facts(extension: Json) -> list[tuple[str, str]]:
    budget, limits = extension["budget"], extension["limits"]
    hold, hard = budget["hold"], budget["hard"]
    return [
        ("answers within", _seconds(hold)),
        *([("runs at most", _seconds(hard))] if hard < hold else []),  # a longer run is cut off by the hold
        ("input up to", _size(limits["input"])),
        ("output up to", _size(limits["output"])),
        ("attempts", str(extension["attempts"])),
    ]


def _seconds(value: float) -> str:
    return f"{value:g} s"


def _size(value: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:g} {unit}"
        value = round(value / 1024, 1)
    return f"{value:g} GiB"
