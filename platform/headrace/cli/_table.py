"""Tables for people: whole in a pipe, fitted to a terminal where they can be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import starmap
from typing import Final

from headrace.cli.output import one_line

_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LEAST: Final = 10
"""So many characters of a column that is cut are left at least."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; an empty cell is shown as a dash, so that every line has as many words."""
    lines = [head, *([cell or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(starmap(str.ljust, zip(line, widths, strict=True))).rstrip() for line in lines)


def fitted(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    shorten: Mapping[str, Callable[[str], str]] | None = None,
    drop: Sequence[str] = (),
    cut: str = "",
) -> str:
    """A table that is at most so wide, if that can be done.

    Args:
        head: the names of the columns.
        rows: their cells.
        width: the room; None is any.
        shorten: how to say less in a column, tried in this order.
        drop: columns to leave out, tried in this order after that.
        cut: the column that is cut at last.
    """
    columns = {name: [row[at] for row in rows] for at, name in enumerate(head)}
    for name, shorter in (shorten or {}).items():
        if not _fits(columns, width):
            columns[name] = [shorter(cell) for cell in columns[name]]
    for name in drop:
        if not _fits(columns, width):
            del columns[name]
    if cut in columns and not _fits(columns, width):
        assert width is not None
        longest = max(map(len, [cut, *columns[cut]]))
        room = max(_LEAST, width - _width(columns) + longest)
        columns[cut] = [one_line(cell, room) for cell in columns[cut]]
    return table(list(columns), list(zip(*columns.values(), strict=True)))


def short_id(text: str) -> str:
    """The text with 8 characters of each id in it: the last, as the first ones of many ids are a time."""
    return _ID.sub(lambda found: f"..{found[0][-8:]}", text)


def moment(at: datetime | None) -> str:
    """An instant in UTC to the second, or nothing."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at else ""


def exact_moment(at: datetime | None) -> str:
    """An instant in UTC to the millisecond, or nothing."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z" if at else ""


def time_of_day(text: str) -> str:
    """Of an instant as the others give it, what is after its day."""
    return text.partition("T")[2] or text


def _fits(columns: Mapping[str, Sequence[str]], width: int | None) -> bool:
    return width is None or _width(columns) <= width


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    longest = (max(len(cell) or 1 for cell in [name, *cells]) for name, cells in columns.items())
    return sum(longest) + 2 * (len(columns) - 1)
