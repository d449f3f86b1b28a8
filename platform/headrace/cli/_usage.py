"""What was counted of functions, for people. Slow to load: inside command bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headrace.cli._table import fitted
from headrace.database import Database
from headrace.histograms import Histogram
from headrace.usage.reading import Counted, read, together

_HEAD: Final = (
    *("FUNCTION", "SERVED", "JOBS", "REFUSED", "FAILED", "EXPIRED", "ABANDONED"),
    *("EXECUTED", "P50", "P95", "QUEUED P95", "JOINED"),
)
_DROPPED: Final = ("JOINED", "ABANDONED", "EXPIRED")


async def since_then(database: Database, seconds: float, function: str | None) -> list[Counted]:
    """What was counted in the last so many seconds, with the whole first minute, or hour if it is old."""
    until = datetime.now(UTC)
    since = (until - timedelta(seconds=seconds)).replace(second=0, microsecond=0)
    return await read(database, since, until, function=function)


def document(counted: Sequence[Counted]) -> list[dict[str, Any]]:
    """All of it, for programs."""
    return [
        {
            "function": one.series.function,
            "kind": one.series.kind,
            "reason": one.series.reason,
            "device": one.device,
            "cost": one.series.cost,
            "number": one.histogram.number,
            "mean": one.histogram.mean,
            "p50": one.histogram.quantile(0.5),
            "p95": one.histogram.quantile(0.95),
        }
        for one in counted
    ]


def listed(counted: Sequence[Counted], width: int | None) -> str:
    """A table of functions, why callers got no result, and how executions ended that didn't succeed."""
    functions = sorted({one.series.function for one in counted})
    if not functions:
        return "nothing was counted in that time"
    rows = [_row(name, [one for one in counted if one.series.function == name]) for name in functions]
    parts = [fitted(_HEAD, rows, width, drop=_DROPPED, cut="FUNCTION"), *_reasons(counted)]
    return "\n\n".join(parts)


def _row(name: str, counted: Sequence[Counted]) -> Sequence[str]:
    def of(kind: str) -> Histogram:
        return together(counted, lambda one: one.series.kind == kind)

    execution, joined = of("execution"), of("joined")
    return (
        name,
        *(_number(of(kind)) for kind in ("served", "accepted", "refused", "failed", "expired", "abandoned")),
        _number(execution),
        _seconds(execution, 0.5),
        _seconds(execution, 0.95),
        _seconds(of("queue"), 0.95),
        f"{joined.mean:.1f}" if joined.number else "",
    )


def _number(histogram: Histogram) -> str:
    return str(histogram.number) if histogram.number else ""


def _seconds(histogram: Histogram, share: float) -> str:
    return f"{histogram.quantile(share):.2g} s" if histogram.number else ""


def _reasons(counted: Sequence[Counted]) -> list[str]:
    answers: Counter[tuple[str, str]] = Counter()
    endings: Counter[tuple[str, str]] = Counter()
    for one in counted:
        name, kind, reason, _ = one.series
        if kind == "failure":
            endings[name, reason] += one.histogram.number
        elif reason:
            answers[name, f"{kind}: {reason}"] += one.histogram.number
    return [
        *_counts("what callers got instead of a result:", answers),
        *_counts("how executions ended that did not succeed:", endings),
    ]


def _counts(title: str, found: Counter[tuple[str, str]]) -> list[str]:
    lines = [f"  {name}: {count} {what}" for (name, what), count in sorted(found.items())]
    return ["\n".join([title, *lines])] if lines else []
