"""What people read of a measurement: tables with bars, then advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpu_runner.bench.advice import advise
from gpu_runner.bench.figures import cost_text, figure, time_text
from gpu_runner.bench.results import Measured, Rate

_BAR: Final = 30
_MIB: Final = 2**20


def report(measured: Measured) -> str:
    """All that was measured, and what it says."""
    return "\n".join(_lines(measured))


def _lines(measured: Measured) -> Iterator[str]:
    if not measured.is_whole:
        why = "FAILED" if measured.failure else "INTERRUPTED"
        yield f"{why} before the end; not measured, or in part only: {', '.join(measured.missing) or 'all'}"
    cores = f"{measured.cores} cores" if measured.cores > 1 else "1 core"
    yield f"{measured.function} on {measured.device or 'no device yet'}, {cores}"
    if measured.start_s:
        yield f"  start     {measured.start_s:.2f} s, models included"
    for model in measured.models:
        yield f"  model     {model.model}: {_size(model.bytes)}, loaded in {model.seconds:.2f} s"
    if measured.resident:
        yield f"  memory    {_size(measured.resident)} at rest, {_size(measured.peak)} at its peak"
    if measured.peak_reserved:
        reserved = f"{_size(measured.reserved)} reserved at rest, {_size(measured.peak_reserved)} at its peak"
        yield f"  on device {reserved}"
    if measured.by_cost:
        head = ("cost", "calls", "median", "95%", "peak")
        rows = [
            (
                cost_text(one.cost),
                str(one.calls),
                time_text(one.median_s),
                time_text(one.p95_s),
                _size(one.peak),
            )
            for one in measured.by_cost
        ]
        yield from _table(
            "time of a call by its cost", head, rows, [one.median_s for one in measured.by_cost]
        )
    if measured.joined:
        joined_head = ("calls", "cost", "median", "cost/s", "peak")
        joined = [
            (str(one.calls), cost_text(one.cost), time_text(one.median_s), figure(one.rate), _size(one.peak))
            for one in measured.joined
        ]
        yield from _table("joined calls", joined_head, joined, [one.rate for one in measured.joined])
    yield from _rates("calls at once in one executor", measured.at_once)
    yield from _rates("several executors", measured.by_executors)
    yield ""
    yield from (f"note: {note}" for note in measured.notes)
    yield "advice"
    yield from (f"  - {sentence}" for sentence in advise(measured))


def _rates(title: str, rates: Sequence[Rate]) -> Iterator[str]:
    if rates:
        head = ("executors", "threads", "at once", "median", "calls/s", "cost/s")
        rows = [
            (
                str(rate.executors),
                str(rate.threads),
                str(rate.at_once),
                time_text(rate.median_s),
                figure(rate.calls_per_s),
                figure(rate.cost_per_s),
            )
            for rate in rates
        ]
        yield from _table(title, head, rows, [rate.calls_per_s for rate in rates])


def _table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], values: Sequence[float]
) -> Iterator[str]:
    """Columns flush right, and a bar for the value of each row."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    largest = max(values) or 1.0
    yield ""
    yield title
    yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(head, widths, strict=True))
    for row, value in zip(rows, values, strict=True):
        bar = "#" * max(1, round(_BAR * value / largest))
        yield (
            "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + f"  {bar}"
        )


def _size(number: int) -> str:
    return f"{number / _MIB:.0f} MiB" if number < 10 * 2**30 else f"{number / 2**30:.1f} GiB"
