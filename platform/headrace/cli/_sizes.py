"""Numbers of bytes as people read them."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
_THREE_DIGITS: Final = 99.95


def size(count: float) -> str:
    """Such as `0 B`, `1.5 MiB`, `90.9 MiB` or `141 GiB`."""
    unit = _UNITS[0]
    for unit in _UNITS:
        if count < _STEP or unit == _UNITS[-1]:
            break
        count /= _STEP
    return f"{count:.0f} {unit}" if unit == "B" or count >= _THREE_DIGITS else f"{count:.1f} {unit}"
