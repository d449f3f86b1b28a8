"""Durations as people write them."""

from __future__ import annotations

import re
from typing import Final

import click

_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(s|m|h|d)?")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """Seconds from text such as `90`, `90s`, `1.5h` or `2d`.

    Raises:
        ValueError: it is none.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration: write it like 90s, 30m, 1.5h or 2d")
    return float(match[1]) * _SECONDS[match[2] or "s"]


class Duration(click.ParamType[float]):
    """The same as the value of an option."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return seconds(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)
