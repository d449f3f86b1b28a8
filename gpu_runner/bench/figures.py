"""Figures as people read them: two or three digits, no exponents."""

from __future__ import annotations

import math


def figure(number: float, digits: int = 3) -> str:
    """A number rounded to so many digits, with commas between thousands: 12,900, 0.0123."""
    if not number or not math.isfinite(number):
        return f"{number:g}"
    places = digits - 1 - math.floor(math.log10(abs(number)))
    text = f"{round(number, places):,.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def cost_text(cost: float) -> str:
    """A cost: people compare it with those that they have declared, so in four digits."""
    return figure(cost, 4)


def cost_code(cost: float) -> str:
    """The same to be declared, in Python: rounded up, so that calls of this cost fit."""
    places = 3 - math.floor(math.log10(cost))
    up = math.ceil(round(cost * 10.0**places, 6)) / 10.0**places
    return figure(up, 4).replace(",", "_")


def time_text(seconds: float, digits: int = 3) -> str:
    """A time, in milliseconds below a second."""
    return f"{figure(seconds, digits)} s" if seconds >= 0.9995 else f"{figure(seconds * 1000, digits)} ms"


def count_text(number: int, word: str) -> str:
    """So many of something: 1 call, 2 calls."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
