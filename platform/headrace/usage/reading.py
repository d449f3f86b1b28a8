"""What was counted, read back: for commands, pages and plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from headrace.database import Database, Row, queries
from headrace.histograms import Histogram
from headrace.usage.counts import Series

_SQL: Final = queries("usage")

MINUTES_KEPT: Final = timedelta(days=7)
"""So long one can look at single minutes."""
HOURS_KEPT: Final = timedelta(days=760)
"""So long one can look at single hours: 25 months."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What was counted of one thing, in one step of time.

    Args:
        at: when the step began.
        series: of what.
        device: what the function ran on; empty where none is concerned.
        histogram: how often, with which values.
    """

    at: datetime
    series: Series
    device: str
    histogram: Histogram


async def read(
    database: Database,
    since: datetime,
    until: datetime,
    *,
    step: timedelta | None = None,
    function: str | None = None,
) -> list[Counted]:
    """What was counted from an instant until before another, in the order of time and names.

    Args:
        database: an open one.
        since: the first minute that counts.
        until: the first one that doesn't.
        step: how long the steps are, counted from 1970; whole minutes. None: all in one, which begins at
            `since`.
        function: whose counts; None: of all.
    """
    parameters = {
        "function": function,
        "since": since,
        "until": until,
        "step_s": None if step is None else step.total_seconds(),
    }
    return [_counted(row) for row in await database.fetch(_SQL["read"], parameters)]


def _counted(row: Row) -> Counted:
    counts = {int(at): count for at, count in row["buckets"].items()}
    return Counted(
        at=row["at"],
        series=Series(row["function"], row["kind"], row["reason"], row["cost"]),
        device=row["device"],
        histogram=Histogram(counts, row["number"], row["total"]),
    )


def together(counted: Iterable[Counted], wanted: Callable[[Counted], bool]) -> Histogram:
    """All that is wanted of it, in one histogram."""
    made = Histogram()
    for one in counted:
        if wanted(one):
            made.add(one.histogram)
    return made
