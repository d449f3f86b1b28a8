"""When something that is away should be back, where nobody says so.

What has been away for a time is expected to be away for as long again: seen at some moment of its absence,
nothing tells whether that is early in it or late, and the median of what is left is what has passed (Gott,
"Implications of the Copernican principle for our future prospects", Nature 363, 1993). A restart of two
seconds is so waited for by seconds, a night by minutes, and each time that is told is at most about twice too
long or too short.
"""

from __future__ import annotations

from typing import Final

LATEST_S: Final = 600.0
"""Nobody is told to come later; it is also what those are told who ask for what was never there."""

_SOONEST_S: Final = 1.0
_FIRST_TRY_S: Final = 10.0  # runners try what could not be loaded again after this,
_LAST_TRY_S: Final = 300.0  # then after twice as long each time, up to this


def back_s(away_s: float | None, load_s: float = 0.0) -> float:
    """Seconds until a runner of a function should be there, from 1 to 600.

    Args:
        away_s: how long there has been none; None: there never was one, as far as is known.
        load_s: how long loading its models took last; 0: it has none, or that isn't known.
    """
    return LATEST_S if away_s is None else _bounded(away_s + load_s)


def mended_s(broken_s: float, load_s: float = 0.0) -> float:
    """Seconds until a runner should have loaded what it could not, from 10 to 600.

    It tries again after pauses that double: each is about as long as what has failed has failed by then.

    Args:
        broken_s: how long it has been so.
        load_s: as for `back_s`.
    """
    return _bounded(min(_LAST_TRY_S, max(_FIRST_TRY_S, broken_s)) + load_s)


def _bounded(seconds: float) -> float:
    return min(LATEST_S, max(_SOONEST_S, seconds))
