"""Whether the figures agree with each other: what was measured twice should have taken as long both times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from gpu_runner.bench.figures import cost_text, count_text, time_text
from gpu_runner.bench.results import Measured

APART: Final = 3.0
"""Times as long the same calls may take at another time."""


def doubt(measured: Measured) -> list[str]:
    """What to think of advice from figures that don't agree; nothing where they do."""
    pairs = [pair for pair in _twice(measured) if min(pair[1:]) > 0]
    if not pairs:
        return []
    what, first, second = max(pairs, key=lambda pair: max(pair[1:]) / min(pair[1:]))
    if max(first, second) <= APART * min(first, second):
        return []
    return [
        f"the machine was busy, so this advice is weak: {what} took {time_text(first, 2)} at first and "
        f"{time_text(second, 2)} later; measure again when nothing else runs"
    ]


def _twice(measured: Measured) -> Iterator[tuple[str, float, float]]:
    """The same calls in one executor, measured in two parts: what, and the two medians."""
    singles = [(one.cost, one.median_s) for one in measured.joined[:1]]
    rates = [one for one in (*measured.at_once, *measured.by_executors) if one.executors == one.at_once == 1]
    if measured.joined:
        lasted = {one.calls: one.median_s for one in measured.joined}
        for rate in rates:
            if rate.joined in lasted:
                yield count_text(rate.joined, "joined call"), lasted[rate.joined], rate.median_s
    else:
        singles += [(one.cost_per_s / one.calls_per_s, one.median_s) for one in rates if one.calls_per_s]
    for timed in measured.by_cost:
        for cost, median_s in singles:
            if math.isclose(timed.cost, cost):
                yield f"one call of cost {cost_text(cost)}", timed.median_s, median_s
