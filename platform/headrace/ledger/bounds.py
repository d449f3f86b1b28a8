"""What may wait in a lane."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from headrace import audit
from headrace.database import Database, Jsonb, queries

MOST_WAITING: Final = 100_000_000
LEAST_COST: Final = 1e-6
MOST_COST: Final = 1e18
LEAST_AGE_S: Final = 1e-3
MOST_AGE_S: Final = 1e9

_SQL: Final = queries("operators")


class LaneBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What may wait in a lane, as in `set_bounds`; None is as the site's settings say."""

    most_waiting: int | None
    most_cost: float | None
    most_age_s: float | None


async def bounds_in_force(database: Database, name: str) -> LaneBounds:
    """What was set for a function whose bounds have been set before."""
    return msgspec.convert((await database.fetch(_SQL["lane_bounds"], {"name": name}))[0], LaneBounds)


async def set_bounds(
    database: Database,
    name: str,
    *,
    most_waiting: int | UnsetType | None = UNSET,
    most_cost: float | UnsetType | None = UNSET,
    most_age_s: float | UnsetType | None = UNSET,
    actor: str | None = None,
) -> bool:
    """Change what is given of what may wait for a function; None goes back to the site's settings.

    Args:
        database: an open one.
        name: the function's.
        most_waiting: so many jobs.
        most_cost: their cost together.
        most_age_s: nothing is accepted while the oldest has waited longer.
        actor: who does it, for the audit; by default whoever runs this program.

    Returns:
        False when there is no such function.

    Raises:
        ValueError: a number isn't allowed.
    """
    given = {
        "most_waiting": (most_waiting, 1, MOST_WAITING),
        "most_cost": (most_cost, LEAST_COST, MOST_COST),
        "most_age_s": (most_age_s, LEAST_AGE_S, MOST_AGE_S),
    }
    for what, (value, least, most) in given.items():
        if isinstance(value, (int, float)) and not least <= value <= most:  # NaN is nowhere between
            raise ValueError(f"{_WORDS[what]} must be from {least:g} to {most:g}, not {value:g}")
    changes = {what: value for what, (value, *_) in given.items() if value is not UNSET}
    parameters = {"name": name, "changes": Jsonb(changes), "actor": actor or audit.operator()}
    return (await database.fetch(_SQL["set_lane"], parameters))[0]["known"]


_WORDS: Final = {
    "most_waiting": "the number of waiting jobs",
    "most_cost": "their cost",
    "most_age_s": "the age of the oldest",
}
