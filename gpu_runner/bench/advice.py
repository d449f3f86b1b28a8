"""What the figures say: how many executors, how large a batch, how many runners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu_runner.bench.doubts import doubt
from gpu_runner.bench.figures import cost_code, cost_text, count_text, figure, time_text
from gpu_runner.bench.results import Joined, Measured, Rate

NEARLY: Final = 0.95
"""Of the best rate: fewer executors or calls at once that reach it are the better choice."""
NEARLY_BATCH: Final = 0.9
"""The same of batches: what a larger one gains beyond that, others wait for."""
BUSY: Final = 0.8
"""How busy runners may be before calls wait much."""
RISING: Final = 1.05
"""Times the best rate of smaller batches does one that shows that the rate still rises."""
_SPARE: Final = 1.2  # times what a model took is declared for it
_MANY: Final = 4  # times the cores: so many executors nobody starts, whether they fit or not
_MIB: Final = 2**20


def advise(measured: Measured) -> list[str]:
    """Sentences, the most useful first; none on what was measured in part only."""
    found = list[str]()
    if "several executors" not in measured.missing:
        found += _executors(measured)
    if "calls at once in one executor" not in measured.missing:
        found += _at_once(measured)
    found += [*_batch(measured), *_batch_unused(measured), *_memory(measured)]
    if "several executors" not in measured.missing:
        found += _runners(measured)
    return [*doubt(measured), *(found or ["too little was measured for advice"])]


def best_executors(measured: Measured) -> Rate | None:
    """The fewest executors that do nearly as much as any number does."""
    return _least(measured.by_executors)


def best_batch(measured: Measured) -> Joined | None:
    """The smallest batch that does nearly as much a second as any, and ends well before the soft limit."""
    able = [one for one in measured.joined if one.passes == 1 and one.median_s <= measured.soft_s / 2]
    most = max((one.rate for one in able), default=0.0)
    return next((one for one in able if one.rate >= NEARLY_BATCH * most), None)


def _least(rates: Sequence[Rate]) -> Rate | None:
    most = max((rate.calls_per_s for rate in rates), default=0.0)
    able = [rate for rate in rates if rate.calls_per_s >= NEARLY * most]
    return min(able, key=lambda rate: (rate.executors, rate.at_once), default=None)


def _executors(measured: Measured) -> list[str]:
    best = best_executors(measured)
    if best is None:
        return []
    text = (
        f"HEADRACE_EXECUTORS={best.executors}, {count_text(best.threads, 'thread')} each: "
        f"{figure(best.calls_per_s)} calls/s"
    )
    first = measured.by_executors[0]
    if best is not first and first.calls_per_s:
        times = best.calls_per_s / first.calls_per_s
        text += f", {times:.1f} times what {count_text(first.executors, 'executor')} did"
    elif len(measured.by_executors) > 1:
        text += "; more executors gain nothing"
    return [text]


def _at_once(measured: Measured) -> list[str]:
    best = _least(measured.at_once)
    if best is None:
        return []
    if best.at_once == measured.concurrency:
        return [f"concurrency={measured.concurrency} is right: more calls at once gain nothing"]
    most = max(rate.at_once for rate in measured.at_once)
    more = ", and more may gain still more" if best.at_once == most > 1 else ""
    return [
        f"concurrency={best.at_once} instead of {measured.concurrency}: "
        f"{figure(best.calls_per_s)} calls/s in one executor{more}"
    ]


def _batch(measured: Measured) -> list[str]:
    best = best_batch(measured)
    if best is None or measured.max_cost is None:
        return []
    present, single, largest = measured.max_cost, measured.joined[0], measured.joined[-1]
    if best.cost < present and "joined calls" in measured.missing:
        return [
            f"leave max_cost at {cost_text(present)} for now: it ended before batches of a higher cost "
            f"than {cost_text(largest.cost)} were measured"
        ]
    if best.cost < present and len(measured.joined) == 1:
        return [f"leave max_cost at {cost_text(present)}: no batch of more than one call was measured"]
    if best.cost < present and still_rises(measured):
        return [
            f"leave max_cost at {cost_text(present)}: the rate still rose at a cost of "
            f"{cost_text(largest.cost)}, the largest that was tried"
        ]
    if best is single:
        return [f"batches of more than one call of cost {cost_text(single.cost)} gain nothing here"]
    text = (
        f"Batch(max_cost={cost_code(best.cost)}), now {cost_text(present)}: "
        f"{count_text(best.calls, 'call')} together take {time_text(best.median_s, 2)}, "
        f"{best.rate / single.rate:.1f} times the rate of single ones"
    )
    if best is largest:
        text += "; it was the largest that was tried, and more may gain more"
    return [text]


def still_rises(measured: Measured) -> bool:
    """Whether the largest batch that was tried did more a second than all smaller ones."""
    *smaller, largest = measured.joined
    is_able = largest.passes == 1 and largest.median_s <= measured.soft_s / 2
    return is_able and largest.rate > RISING * max((one.rate for one in smaller), default=0.0)


def _batch_unused(measured: Measured) -> list[str]:
    """For a function that isn't batched, whether that may be worth it."""
    if measured.max_cost is not None or len(measured.by_cost) < 2:
        return []
    first, last = measured.by_cost[0], measured.by_cost[-1]
    if not first.cost or not first.median_s or not last.median_s:
        return []
    gain = (last.cost / first.cost) / (last.median_s / first.median_s)
    if gain < 2:
        return []
    return [
        f"{figure(last.cost / first.cost)} times the cost takes only "
        f"{last.median_s / first.median_s:.1f} times the time: joined calls, "
        f"@function(batch=Batch(...)), may do up to {gain:.1f} times as much"
    ]


def _memory(measured: Measured) -> list[str]:
    found = [
        f"@model(memory={_size(model.bytes * _SPARE)!r}) for {model.model}: it took {_size(model.bytes)}"
        for model in measured.models
        if model.bytes
    ]
    if not measured.missing and measured.each and measured.budget and measured.fit < _MANY * measured.cores:
        found.append(
            f"one executor takes up to {_size(measured.each)} of its own: "
            f"{count_text(measured.fit, 'executor')} of it fit into {_size(measured.budget)}"
        )
    return found


def _runners(measured: Measured) -> list[str]:
    best = best_executors(measured)
    if best is None:
        return []
    rates = ", ".join(f"{number}: {figure(number * BUSY * best.calls_per_s)}/s" for number in (1, 2, 4, 8))
    return [f"runners of this kind serve, {BUSY:.0%} busy: {rates}"]


def _size(number: float) -> str:
    return f"{max(1, round(number / _MIB))}MiB"
