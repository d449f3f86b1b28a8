"""What has been measured. Seconds, bytes, and the function's own units of cost throughout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

Part = Literal[
    "time of a call by its cost", "joined calls", "calls at once in one executor", "several executors"
]
"""What a measurement consists of, in this order."""


class Timed(msgspec.Struct, frozen=True):
    """One call after another with inputs of one cost, in one executor."""

    cost: float
    calls: int
    median_s: float
    p95_s: float
    peak: int


class Joined(msgspec.Struct, frozen=True):
    """Calls of a batched function, so many at a time. `passes` is how often the body ran for one batch."""

    calls: int
    cost: float
    median_s: float
    passes: int
    peak: int

    @property
    def rate(self) -> float:
        """Cost a second."""
        return self.cost / self.median_s if self.median_s else math.inf


class Rate(msgspec.Struct, frozen=True):
    """As much as so many executors do, with that many calls under way in each.

    Of a batched function what is under way is a batch, of `joined` calls.
    """

    executors: int
    threads: int
    at_once: int
    calls_per_s: float
    cost_per_s: float
    median_s: float
    joined: int = 1


class Loading(msgspec.Struct, frozen=True):
    """A model: what it takes of its device, and how long that took."""

    model: str
    bytes: int
    seconds: float


class Measured(msgspec.Struct):
    """All that is known of one function on one machine; `is_whole` when nothing has cut it short."""

    function: str
    device: str
    cores: int
    budget: int
    concurrency: int
    is_async: bool
    soft_s: float
    max_cost: float | None = None
    start_s: float = 0.0
    models: list[Loading] = []
    resident: int = 0
    peak: int = 0
    reserved: int = 0
    peak_reserved: int = 0
    each: int = 0
    """What one executor more takes at its peak, of the budget."""
    by_cost: list[Timed] = []
    joined: list[Joined] = []
    at_once: list[Rate] = []
    by_executors: list[Rate] = []
    notes: list[str] = []
    missing: list[Part] = []
    """What wasn't measured, or not to its end."""
    is_whole: bool = False
    failure: str = ""
    """What has cut it short; empty where that was its user."""

    @property
    def fit(self) -> int:
        """How many executors the budget has room for; one at least."""
        return max(1, self.budget // self.each) if self.each and self.budget else 64


def median(values: Sequence[float]) -> float:
    """The middle one, or the lower of two."""
    return sorted(values)[(len(values) - 1) // 2]


def p95(values: Sequence[float]) -> float:
    """What 95 of 100 don't exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]
