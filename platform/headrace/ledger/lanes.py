"""How fast lanes drain, and how long their lines are: what predictions and `Retry-After` rest on."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.database import Database, queries

_SQL: Final = queries("lanes")
REFRESH_EVERY: Final = 0.5
"""Seconds between two looks at the lanes."""


class LaneStanding(msgspec.Struct, frozen=True, kw_only=True):
    """One lane, as of the last look.

    Args:
        name: the function's.
        waiting: jobs that wait.
        waiting_cost: their cost together, each counted from 1 to a million, as fairness does; roughly where
            more than 500 wait.
        rate: the cost of the jobs that it starts in a second, a little low; None: not known.
        is_measured: whether the rate was measured while jobs waited; otherwise it is what runners report.
        places: places in line that are outstanding.
        line_s: seconds to the end of the longest line; 0: there is none.
    """

    name: str
    waiting: int
    waiting_cost: float
    rate: float | None
    is_measured: bool
    places: int
    line_s: float


async def lanes(database: Database) -> dict[str, LaneStanding]:
    """All lanes that ever had a job, or that a live runner reports, by name."""
    standings = msgspec.convert(await database.fetch(_SQL["lanes"]), list[LaneStanding])
    return {standing.name: standing for standing in standings}


async def refresh(database: Database, *, every_s: float = REFRESH_EVERY * 0.7) -> bool:
    """Look at what waits, was started and is reported, and forget places whose time is over.

    Args:
        database: an open one.
        every_s: nothing is done where the last look is more recent, by whichever process.

    Returns:
        Whether anything was done.
    """
    return (await database.fetch(_SQL["refresh"], {"every_s": every_s}))[0]["refreshed"]
