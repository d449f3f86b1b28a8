"""What the other examples do without a site around them."""

from __future__ import annotations

import csv
import io
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.csv_rows import Row, Sheet, csv_rows, table
from headrace import Call, InvalidInput
from headrace.errors import DeclarationError
from headrace.sdk.discovery import discover


def call() -> Call:
    end = time.monotonic() + 60
    return Call(job_id="j", attempt=1, soft_at=end, deadline_at=end)


def rows(text: str, **options: Any) -> list[Row]:
    return list(csv_rows.fn(Sheet(csv=text, **options), call=call()))


@pytest.mark.parametrize("missing", ["TRANSLATE_URL", "TRANSLATE_MODEL"])
def test_translate_is_not_served_without_its_settings(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSLATE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("TRANSLATE_MODEL", "m")
    monkeypatch.delenv(missing)
    monkeypatch.delitem(sys.modules, "examples.translate", raising=False)
    with pytest.raises(DeclarationError, match=f"{missing} isn't set; for example {missing}="):
        discover(["examples.translate"])


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(st.lists(st.lists(CELL, min_size=2, max_size=2), max_size=5), st.sampled_from([",", ";", "\t", "|"]))
def test_rows_are_what_was_written(values: list[list[str]], delimiter: Any) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *values])
    found = rows(written.getvalue(), delimiter=delimiter)
    assert [list(row.values.values()) for row in found] == values
    assert table(found).count == len(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "name the columns"),
        ("a,a\n", "each once"),
        ("a,b\n1,2,3\n", "line 2 has 3 values for 2 columns"),
        ('a\n"open', "line 2"),
        ('a\n"x"y\n', "line 2"),
    ],
)
def test_what_is_no_table_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        rows(text)


def test_empty_lines_are_no_rows_and_lines_are_counted_as_they_stand() -> None:
    assert [(row.line, row.values) for row in rows('a\n\n"1\n2"\n3')] == [(4, {"a": "1\n2"}), (5, {"a": "3"})]
