"""What waits in the ledger for each function, as it was last read: no call waits for that."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.ledger.lanes import LaneStanding

READ_S: Final = 1.0
"""How often it is read."""

_OLD_S: Final = 10.0  # what was read longer ago says nothing any more: a backlog may be gone, or tenfold


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for one function.

    Args:
        waiting: jobs that could start.
        waiting_cost: their cost together.
        rate: the cost of jobs that starts in a second; None: nobody knows.
        is_measured: that was measured here; else it is what runners report that they could do.
        wait_s: how long all of them take to start; None: nobody knows.
        places: how many who were refused hold a place in line.
        line_s: until the last of them is to come.
    """

    waiting: int
    waiting_cost: float
    rate: float | None
    is_measured: bool
    wait_s: float | None
    places: int
    line_s: float

    @property
    def clear_s(self) -> float:
        """Seconds until nothing waits; 0: nothing does, or nobody knows.

        Places that nobody has used yet don't count: lines are by owner, and one that was given up would keep
        all others away.
        """
        return self.wait_s or 0.0 if self.waiting else 0.0


class Lanes:
    """All lanes, as Postgres last told; while it is away the last figures stand for some seconds."""

    def __init__(self) -> None:
        self._lanes: Mapping[str, Lane] = {}
        self._old_at = 0.0

    def told(self, standings: Mapping[str, LaneStanding]) -> None:
        """Take what was read just now, by lane."""
        self._lanes = {name: _lane(one) for name, one in standings.items()}
        self._old_at = time.monotonic() + _OLD_S

    def of(self, function: str) -> Lane | None:
        """A function's; None where nothing is known of it."""
        lane = self._lanes.get(function)
        return lane if lane is not None and time.monotonic() < self._old_at else None


def _lane(one: LaneStanding) -> Lane:
    return Lane(
        waiting=one.waiting,
        waiting_cost=one.waiting_cost,
        rate=one.rate,
        is_measured=one.is_measured,
        wait_s=one.waiting_cost / one.rate if one.rate else None if one.waiting else 0.0,
        places=one.places,
        line_s=one.line_s,
    )
