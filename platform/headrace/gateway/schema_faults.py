"""Which faults of an input can be told in bounded time.

For a value that satisfies no alternative, the library gathers the faults of every alternative, and of the
alternatives below, and so on: where they lead back to the same union, each level multiplies the work. Whether
a value is valid is known quickly in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

Schema = dict[str, Any]

_UNIONS: Final = frozenset({"allOf", "anyOf", "oneOf"})
# Not kept beside a union that was left out: without it they would refuse what is right.
_DEPENDENT: Final = frozenset({"not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"})
_NAMED_SCHEMAS: Final = frozenset({"$defs", "properties", "patternProperties", "dependentSchemas"})
_VALUES: Final = frozenset({"const", "default", "enum", "example", "examples"})
_SCALAR: Final = frozenset({"boolean", "integer", "null", "number", "string"})


def multiplies(schema: Schema) -> bool:
    """Whether each level of a value may multiply the time that telling its faults takes."""
    loops = {ref for ref in _refs(schema) if ref in _reached(schema, _target(schema, ref))}
    return any(
        not loops.isdisjoint(_reached(schema, part[keyword]))
        for part in _parts(schema)
        for keyword in _UNIONS & part.keys()
    )


def without_unions(schema: Any) -> Any:
    """A weaker schema, whose faults are told in linear time; of unions, those of plain values are left."""
    if not isinstance(schema, dict):
        return schema  # `true` and `false` are schemas too
    kept: Schema = {}
    for keyword, value in cast("Schema", schema).items():
        if keyword in _DEPENDENT or (keyword in _UNIONS and not all(map(_is_plain, value))):
            continue
        if keyword in _NAMED_SCHEMAS:
            kept[keyword] = {name: without_unions(one) for name, one in value.items()}
        elif keyword == "prefixItems":
            kept[keyword] = [without_unions(one) for one in value]
        elif keyword in _VALUES or keyword in _UNIONS:
            kept[keyword] = value
        else:
            kept[keyword] = without_unions(value)
    return kept


def choice(schema: Schema, path: Sequence[str | int], *, is_too_much: bool = False) -> str | None:
    """What to say of a value that satisfies no branch of a union, or more than one: which fields it is about.

    Likewise of one with fields that `not` forbids together. None where a branch says more than that a field
    is there.

    Args:
        schema: the whole.
        path: from there to the union's keyword, or to `not`.
        is_too_much: it satisfies more than one.
    """
    found: Any = schema
    for part in path:
        if not (isinstance(found, list) or (isinstance(found, dict) and part in found)):
            return None
        found = cast("Any", found)[part]
    if path and path[-1] == "not" and _only_requires(found):
        return f"{' and '.join(found['required'])} can't be given together"
    branches = cast("list[Any]", found) if isinstance(found, list) else []
    if not branches or not all(_only_requires(branch) for branch in branches):
        return None
    which = ", ".join(" and ".join(branch["required"]) for branch in branches)
    if is_too_much:
        return f"only one of {which} may be given"
    return f"one of {which} is needed" if path[-1] == "anyOf" else f"exactly one of {which} is needed"


def _only_requires(branch: Any) -> bool:
    return isinstance(branch, dict) and set(cast("Schema", branch)) == {"required"}


def _is_plain(branch: Any) -> bool:
    return isinstance(branch, dict) and branch.get("type") in _SCALAR  # pyright: ignore[reportUnknownMemberType]


def _parts(schema: Any) -> Iterator[Schema]:
    """All objects in a schema: the schemas, and a few that aren't."""
    if isinstance(schema, dict):
        yield cast("Schema", schema)
        schema = list(cast("Schema", schema).values())
    if isinstance(schema, list):
        for one in cast("list[Any]", schema):
            yield from _parts(one)


def _refs(schema: Any) -> set[str]:
    found = (part.get(keyword) for part in _parts(schema) for keyword in ("$ref", "$dynamicRef"))
    return {ref for ref in found if isinstance(ref, str)}


def _reached(root: Schema, schema: Any) -> set[str]:
    """All references that are met on the way down from a part of the schema."""
    reached: set[str] = set()
    waiting = _refs(schema)
    while waiting:
        ref = waiting.pop()
        reached.add(ref)
        waiting |= _refs(_target(root, ref)) - reached
    return reached


def _target(root: Schema, ref: str) -> Any:
    """What a reference leads to; the whole schema when it isn't a JSON Pointer."""
    found: Any = root
    for part in ref.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or key not in found:
            return root
        found = cast("Schema", found)[key]
    return found
