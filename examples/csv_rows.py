r"""Reads CSV row by row, and streams each as it is read: whoever asks for events has the first one at once.

    HEADRACE_FUNCTIONS=examples.csv_rows make up

    curl -sN http://127.0.0.1:8000/fn/csv_rows \
      -H "Authorization: Bearer $(cat .headrace/key)" \
      -H 'Content-Type: application/json' \
      -H 'Accept: text/event-stream' \
      -d '{"csv": "mill,built\nUpper Mill,1780\nLower Mill,1812\n"}'

Without the line `Accept` the same call answers with what `table` makes of all rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from headrace import Budget, Call, Cost, InvalidInput, Limits, function


class Sheet(BaseModel):
    """Lines of values, as of RFC 4180; the first one names the columns."""

    csv: Annotated[str, Field(min_length=1, max_length=4_000_000)]
    delimiter: Literal[",", ";", "\t", "|"] = ","


class Row(BaseModel):
    """One row: its values by their columns."""

    line: int = Field(description="The line of the text where the row ends, from 1.")
    values: dict[str, str]


class Table(BaseModel):
    """All rows."""

    rows: list[Row]
    count: int


def table(rows: list[Row]) -> Table:
    """What callers get who don't want a stream."""
    return Table(rows=rows, count=len(rows))


@function(
    collect=table,
    budget=Budget(sync=10, queue=30, soft=50, hard=60),
    limits=Limits(input="8MiB", output="64MiB"),
    cost=Cost.chars("csv"),
    examples=[{"csv": "mill,built\nUpper Mill,1780\n"}],
)
def csv_rows(input: Sheet, *, call: Call) -> Iterator[Row]:
    """The rows of a CSV text, one by one."""
    lines = input.csv.count("\n") + 1
    reader = csv.reader(io.StringIO(input.csv, newline=""), delimiter=input.delimiter, strict=True)
    try:
        columns = next(reader, list[str]())
        if not columns or len(set(columns)) < len(columns):
            raise InvalidInput("the first line must name the columns, each once", path="/csv")
        for values in reader:
            if not values:
                continue  # an empty line
            if len(values) != len(columns):
                raise InvalidInput(
                    f"line {reader.line_num} has {len(values)} values for {len(columns)} columns", path="/csv"
                )
            yield Row(line=reader.line_num, values=dict(zip(columns, values, strict=True)))
            call.progress(min(1.0, reader.line_num / lines), f"line {reader.line_num}")
    except csv.Error as error:
        raise InvalidInput(f"line {reader.line_num}: {error}", path="/csv") from None
