"""What was counted, read back: for commands, pages and plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from headrace.database import Database, Row, queries
from headrace.histograms import Histogram
from headrace.usage.counts import Series

_SQL: Final = queries("usage")

MINUTES_KEPT: Final = timedelta(days=7)
"""So long one can look at single minutes."""
HOURS_KEPT: Final = timedelta(days=760)
"""So long one can look at single hours: 25 months."""
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
_READ_WITHIN_S: Final = 120.0


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
        until: the first one that doesn't. An hour that either divides counts whole where it is older than
            `MINUTES_KEPT`.
        step: how long the steps are, counted from 1970: whole minutes up to an hour, or whole hours. Those
            under an hour have what is kept by the minute, and nothing older than `MINUTES_KEPT`. None: all in
            one, which begins at `since`.
        function: whose counts; None: of all.

    Raises:
        ValueError: there are no such steps.
    """
    if step is not None and (step < _MINUTE or step % (_MINUTE if step < _HOUR else _HOUR)):
        raise ValueError(f"steps are whole minutes up to an hour, or whole hours: {step} is neither")
    if step is None or step >= _HOUR:
        since, until = _widened(since, until, datetime.now(UTC) - MINUTES_KEPT)
    parameters = {
        "function": function,
        "since": since,
        "until": until,
        "step_s": None if step is None else step.total_seconds(),
    }
    rows = await database.fetch(_SQL["read"], parameters, within=_READ_WITHIN_S)
    return [_counted(row) for row in rows]


def _widened(since: datetime, until: datetime, minutes_from: datetime) -> tuple[datetime, datetime]:
    """The same span, but with whole hours where an end of it lies before the first minute that is kept."""
    if since < minutes_from:
        since = _hour_of(since)
    if until < minutes_from and until != _hour_of(until):
        until = _hour_of(until) + _HOUR
    return since, until


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


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
