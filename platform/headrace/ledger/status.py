"""The lanes at a glance."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.database import Database, queries

_SQL: Final = queries("settling")


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One function's queue: jobs that wait and run, the age of the oldest one that waits, live runners.

    Args:
        most_waiting: what may wait, as in `bounds.set_bounds`; None is as the site's settings say.
        most_cost: the same of its cost together.
        most_age_s: the same of its age.
    """

    function: str
    waiting: int
    oldest_s: float | None
    running: int
    runners: int
    most_waiting: int | None = None
    most_cost: float | None = None
    most_age_s: float | None = None


async def lanes(database: Database) -> list[LaneStatus]:
    """All functions in service, by name."""
    return msgspec.convert(await database.fetch(_SQL["lanes"]), list[LaneStatus])
