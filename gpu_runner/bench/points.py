"""What is measured one after the other, and about how long that takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from gpu_runner.bench.figures import count_text, figure
from gpu_runner.bench.inputs import Input, grows
from headrace.sdk import Function

STEPS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""How much larger inputs become, and batches."""
ASYNC_AT_ONCE: Final = 4
"""An asynchronous function is tried with so many times its `concurrency`."""
ENOUGH: Final = 2.0
"""Times the seconds of a point may one call take, before larger ones are left out."""
_FULL: Final = 4  # times its `max_cost` is the largest batch that is tried


class Plan(msgspec.Struct, frozen=True):
    """What is to be measured: for how long each point, with which costs and numbers of executors."""

    seconds: float
    costs: tuple[float, ...] = ()
    executors: tuple[int, ...] = ()


class Points(msgspec.Struct, frozen=True):
    """The costs, the numbers of calls joined and at once, and of executors, each from the smallest on."""

    costs: list[float]
    joined: list[int]
    at_once: list[int]
    executors: list[int]


def points_of(function: Function[Any, Any], inputs: Sequence[Input], plan: Plan, cores: int) -> Points:
    """What there is to measure of a function, as far as it can be told before.

    Args:
        function: which.
        inputs: what it gets.
        plan: what was ordered.
        cores: of the machine.
    """
    first, manifest = inputs[0], function.manifest
    if grows(function, first):
        costs = sorted(plan.costs) or [first.cost * step for step in STEPS]
    else:
        costs = [min(one.cost for one in inputs)]
    joined = list[int]()
    if manifest.batch is not None:
        most = _FULL * manifest.batch.max_cost
        joined = [count for count in STEPS if count == 1 or _cost(inputs, count) <= most]
    at_once = list[int]()
    if manifest.concurrency > 1 or function.is_async:
        top = manifest.concurrency * (ASYNC_AT_ONCE if function.is_async else 1)
        at_once = sorted({*(step for step in STEPS if step < top), top})
    executors = sorted(set(plan.executors or [*(n for n in STEPS if n < cores), cores]))
    return Points(costs, joined, at_once, executors)


def repeated(inputs: Sequence[Input], count: int) -> list[Input]:
    """So many inputs, in turn."""
    return [inputs[number % len(inputs)] for number in range(count)]


def estimate(points: Points, seconds: float, single_s: float = 0.0, cost: float = 0.0) -> float:
    """About how many seconds they take, the starts of executors not included.

    Args:
        points: which.
        seconds: of each.
        single_s: what a call takes; 0: not known yet. Dearer ones are taken to last longer in proportion.
        cost: of that call; 0: all take the same time.
    """
    lengths = [single_s * (each / cost if cost else 1.0) for each in points.costs]
    total = sum(_lasts(lengths, seconds))
    total += sum(_lasts([single_s * count for count in points.joined], seconds))
    return total + (seconds + single_s) * (len(points.at_once) + len(points.executors))


def estimate_text(points: Points, seconds: float) -> str:
    """The estimate before anything has run, and what it is made of."""
    parts = [
        (len(points.costs), "cost", "costs"),
        (len(points.joined), "size of joined calls", "sizes of joined calls"),
        (len(points.at_once), "number of calls at once", "numbers of calls at once"),
        (len(points.executors), "number of executors", "numbers of executors"),
    ]
    said = [f"{number} {one if number == 1 else several}" for number, one, several in parts if number]
    return (
        f"about {count_text(round(estimate(points, seconds)) or 1, 'second')}: {', '.join(said)}, "
        f"{figure(seconds)} s each; more where a call takes long, and the starts of executors"
    )


def _lasts(lengths: Sequence[float], seconds: float) -> Iterator[float]:
    """A call to warm up, and calls for the seconds; none after one that took too long."""
    for length in lengths:
        calls = math.ceil(seconds / length) if length else 0
        if calls < 3 and length:
            calls = max(calls, min(3, math.ceil(ENOUGH * seconds / length)))
        yield length + (calls * length or seconds)
        if length > ENOUGH * seconds:
            return


def _cost(inputs: Sequence[Input], count: int) -> float:
    return sum(one.cost for one in repeated(inputs, count))
