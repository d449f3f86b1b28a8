"""Postgres away: who would wait for it is told at once."""

from __future__ import annotations

from typing import Final

from headrace.errors import DatabaseUnavailable

_LONGEST_SILENCE_S: Final = 3.0


def answers(away: float) -> bool:
    """Whether Postgres is worth asking, so many seconds after it last answered."""
    return away <= _LONGEST_SILENCE_S


def require_postgres(away: float) -> None:
    """Pass while Postgres answers: behind a longer silence a query would hang as long as that takes.

    Args:
        away: seconds since it last answered.

    Raises:
        DatabaseUnavailable: it has long been silent.
    """
    if not answers(away):
        raise DatabaseUnavailable(f"Postgres has not answered for {away:.0f} s")
