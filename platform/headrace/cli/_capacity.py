"""What runners can do at this moment, for people. Slow to load: inside command bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.capacity import Capacity, Report
from headrace.cli._sizes import size
from headrace.cli._table import fitted, short_id

_HEAD: Final = (
    *(
        "FUNCTION",
        "RUNNER",
        "SLOTS",
        "FREE",
        "WAITING",
        "COST",
        "MEAN",
        "P95",
        "PER COST",
        "MODELS",
        "MEMORY",
    ),
)
_DROPPED: Final = ("PER COST", "COST", "MEMORY")


def document(reports: Mapping[str, Report]) -> list[dict[str, Any]]:
    """All of it, for programs."""
    return [
        {"function": name, "runner_id": runner_id, **msgspec.to_builtins(capacity)}
        for name, runner_id, capacity in _rows(reports)
    ]


def listed(reports: Mapping[str, Report], width: int | None) -> str:
    """A table, by function and runner."""
    if not reports:
        return "no runner lives, or none has told what it can do yet"
    rows = [_row(*one) for one in _rows(reports)]
    return fitted(_HEAD, rows, width, shorten={"RUNNER": short_id}, drop=_DROPPED, cut="FUNCTION")


def _rows(reports: Mapping[str, Report]) -> list[tuple[str, str, Capacity]]:
    found = [
        (name, runner_id, capacity)
        for runner_id, report in reports.items()
        for name, capacity in report.functions.items()
    ]
    return sorted(found, key=lambda one: one[0])  # stable: runners stay in the order of their starts


def _row(name: str, runner_id: str, one: Capacity) -> Sequence[str]:
    return (
        name,
        runner_id,
        str(one.slots),
        str(one.free),
        str(one.waiting),
        f"{one.waiting_cost:.10g}" if one.waiting_cost else "",
        _seconds(one.mean_s),
        _seconds(one.p95_s),
        _seconds(one.cost_s),
        one.warmth,
        size(one.memory) if one.memory else "",
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds else ""
