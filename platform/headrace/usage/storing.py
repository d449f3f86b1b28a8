"""Counts in Postgres: added as they come, summed up by the hour, forgotten when they are old."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from headrace.database import Database, Jsonb, queries
from headrace.usage.counts import Minute

_SQL: Final = queries("usage")
_SUM_WITHIN_S: Final = 120.0
"""An hour of 40,000 series-minutes takes a second or two, and a machine may be busy."""


async def add(
    database: Database, source: str, sequence: int, device: str, minutes: Sequence[tuple[int, Minute]]
) -> bool:
    """Add what a process has counted; False when this has been added before.

    Args:
        database: an open one.
        source: a UUID of the process.
        sequence: of what it sends: each time a larger one, and the same when it is sent again.
        device: what the functions ran on, `cpu` or `cuda`; empty for a gateway.
        minutes: each with when it began, in seconds since 1970.
    """
    counts = [row for at, minute in minutes for row in _rows(at, device, minute)]
    parameters = {"source": source, "sequence": sequence, "counts": Jsonb(counts)}
    return (await database.fetch(_SQL["add"], parameters))[0]["added"]


def _rows(at: int, device: str, minute: Minute) -> list[dict[str, Any]]:
    began = datetime.fromtimestamp(at, UTC).isoformat()
    return [
        {
            **series._asdict(),
            "at": began,
            "device": device,
            "number": histogram.number,
            "total": histogram.total,
            "buckets": histogram.counts,
        }
        for series, histogram in minute.items()
    ]


async def add_expired(database: Database, limit: int) -> int:
    """Add the jobs that have expired to the counts of their minutes.

    The ledger notes them where it ends them, and a note leaves in the transaction that adds it: sent again,
    this adds what is left.

    Args:
        database: an open one.
        limit: notes at most; each is of some jobs that expired together.

    Returns:
        How many notes there were.
    """
    return (await database.fetch(_SQL["add_expired"], {"limit": limit}))[0]["added"]


async def sum_up(database: Database) -> int:
    """Sum up the first hour that is over and has minutes that aren't summed up yet; 0: there was none.

    One at a time, so that what has been done stays done, however long a backlog takes.
    """
    return (await database.fetch(_SQL["sum"], {"limit": 1}, within=_SUM_WITHIN_S))[0]["summed"]


async def prune_minutes(database: Database, after_s: float, limit: int) -> int:
    """Minutes that began so many seconds ago, and whose hour is summed up."""
    return (await database.fetch(_SQL["prune_minutes"], {"after_s": after_s, "limit": limit}))[0]["pruned"]


async def prune_hours(database: Database, after_s: float, limit: int) -> int:
    """Hours that began so many seconds ago."""
    return (await database.fetch(_SQL["prune_hours"], {"after_s": after_s, "limit": limit}))[0]["pruned"]
