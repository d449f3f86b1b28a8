"""Whether to look again, soon, for jobs that were heard of and not got.

A claim skips rows that others hold locked, and the row of a new job is locked for a moment when somebody
begins to wait for its end: the claim that its arrival causes may miss it. Usually another runner has it, so
this looks twice and then leaves it to the next reason for a claim.
"""

from __future__ import annotations

from typing import Final

DELAYS_S: Final = (0.005, 0.025)
"""Seconds between a claim that missed something and the next look."""


class SecondLook:
    """Counts what was heard of against what was got."""

    def __init__(self) -> None:
        self._heard = 0
        self._missing = 0
        self._looks = 0

    def heard(self) -> None:
        """A new job was told of."""
        self._heard += 1
        self._looks = 0

    def claiming(self) -> None:
        """A claim begins: it may get all that was told of so far."""
        self._missing += self._heard
        self._heard = 0

    def claimed(self, asked: int, got: int) -> float | None:
        """It is answered; returns the seconds after which to look again, if that is worthwhile."""
        self._missing = max(0, self._missing - got)
        if got >= asked or not self._missing or self._looks >= len(DELAYS_S):
            self._missing = 0
            return None
        self._looks += 1
        return DELAYS_S[self._looks - 1]
