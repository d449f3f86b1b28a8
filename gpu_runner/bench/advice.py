"""What the figures say: how many executors, how large a batch, how many runners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu_runner.bench.results import Joined, Measured, Rate

NEARLY: Final = 0.95
"""Of the best rate: fewer executors or calls at once that reach it are the better choice."""
NEARLY_BATCH: Final = 0.9
"""The same of batches: what a larger one gains beyond that, others wait for."""
BUSY: Final = 0.8
"""How busy runners may be before calls wait much."""
_SPARE: Final = 1.2  # times what a model took is declared for it
_MANY: Final = 4  # times the cores: so many executors nobody starts, whether they fit or not
_MIB: Final = 2**20


def advise(measured: Measured) -> list[str]:
    """Sentences, the most useful first; fewer where less was measured."""
    found = [
        *_executors(measured),
        *_at_once(measured),
        *_batch(measured),
        *_batch_unused(measured),
        *_memory(measured),
        *_runners(measured),
    ]
    return found or ["too little was measured for advice"]


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
        f"HEADRACE_EXECUTORS={best.executors}, {_count(best.threads, 'thread')} each: "
        f"{rate_text(best.calls_per_s)} calls/s"
    )
    first = measured.by_executors[0]
    if best is not first and first.calls_per_s:
        times = best.calls_per_s / first.calls_per_s
        text += f", {times:.1f} times what {_count(first.executors, 'executor')} did"
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
        f"{rate_text(best.calls_per_s)} calls/s in one executor{more}"
    ]


def _batch(measured: Measured) -> list[str]:
    best = best_batch(measured)
    if best is None or measured.max_cost is None:
        return []
    single = measured.joined[0]
    if best is single:
        return [f"batches of more than one call of cost {single.cost:.4g} gain nothing here"]
    text = (
        f"Batch(max_cost={best.cost:.4g}), now {measured.max_cost:.4g}: "
        f"{_count(best.calls, 'call')} together take {best.median_s * 1000:.3g} ms, "
        f"{best.rate / single.rate:.1f} times the rate of single ones"
    )
    if best is measured.joined[-1] and len(measured.joined) > 1:
        text += "; it was the largest that was tried, and more may gain more"
    return [text]


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
        f"{last.cost / first.cost:.3g} times the cost takes only {last.median_s / first.median_s:.1f} times "
        f"the time: joined calls, @function(batch=Batch(...)), may do up to {gain:.1f} times as much"
    ]


def _memory(measured: Measured) -> list[str]:
    found = [
        f"@model(memory={_size(model.bytes * _SPARE)!r}) for {model.model}: it took {_size(model.bytes)}"
        for model in measured.models
        if model.bytes
    ]
    if measured.each and measured.budget and measured.fit < _MANY * measured.cores:
        found.append(
            f"one executor takes up to {_size(measured.each)} of its own: "
            f"{_count(measured.fit, 'executor')} of it fit into {_size(measured.budget)}"
        )
    return found


def _runners(measured: Measured) -> list[str]:
    best = best_executors(measured)
    if best is None:
        return []
    rates = ", ".join(f"{number}: {rate_text(number * BUSY * best.calls_per_s)}/s" for number in (1, 2, 4, 8))
    return [f"runners of this kind serve, {BUSY:.0%} busy: {rates}"]


def rate_text(number: float) -> str:
    """A rate in three digits, or in all those before the point."""
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _size(number: float) -> str:
    return f"{max(1, round(number / _MIB))}MiB"
