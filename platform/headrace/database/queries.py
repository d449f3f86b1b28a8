"""Named queries, read from the `.sql` files that ship with the package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Final, LiteralString, cast

_HEADER: Final = re.compile(r"^-- name: *(.*?) *$", re.MULTILINE)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


@cache
def queries(area: str) -> Mapping[str, LiteralString]:
    """The queries of `sql/queries/<area>.sql` by name."""
    source = resources.files("headrace") / "sql" / "queries" / f"{area}.sql"
    return MappingProxyType(parse_queries(source.read_text(encoding="utf-8"), f"{area}.sql"))


def parse_queries(text: str, file: str) -> dict[str, LiteralString]:
    """Split a file at its `-- name: x` headers; what stands before the first one is a comment.

    Raises:
        ValueError: a name is malformed or taken, a query is empty, or the file names none.
    """
    parts = _HEADER.split(text)[1:]
    if not parts:
        raise ValueError(f"{file} has no `-- name: x` header")
    found: dict[str, LiteralString] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        query = body.strip().removesuffix(";")
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{file}: {name!r} is not a query name")
        if name in found:
            raise ValueError(f"{file}: two queries are named {name!r}")
        if not query:
            raise ValueError(f"{file}: the query {name!r} is empty")
        # The text is the program's own, as if it stood here; no input ever reaches it.
        found[name] = cast(LiteralString, query)
    return found
