from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from headrace.database import queries
from headrace.database.queries import parse_queries


def test_queries_ship_with_the_package_and_parse() -> None:
    files = [Path(file.name) for file in (resources.files("headrace") / "sql" / "queries").iterdir()]
    assert {file.suffix for file in files} == {".sql"}
    for file in files:
        assert queries(file.stem)


def test_query_is_the_text_below_its_header() -> None:
    text = "-- About this file.\n\n-- name: one\n-- Why.\nSELECT 1;\n\n-- name: two_v1\nSELECT ';',\n  2;\n"
    assert parse_queries(text, "x.sql") == {"one": "-- Why.\nSELECT 1", "two_v1": "SELECT ';',\n  2"}


def test_unknown_query_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="no_such_query"):
        queries("keys")["no_such_query"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT 1;", "has no `-- name: x` header"),
        ("-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;", "two queries are named 'one'"),
        ("-- name: One\nSELECT 1;", "'One' is not a query name"),
        ("-- name:\nSELECT 1;", "'' is not a query name"),
        ("-- name: one\n-- name: two\nSELECT 1;", "the query 'one' is empty"),
    ],
)
def test_malformed_file_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_queries(text, "x.sql")
