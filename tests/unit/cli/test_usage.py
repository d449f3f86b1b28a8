"""What runners can do, and what was counted, as tables and as JSON."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.capacity import Capacity, CostTime, Report
from headrace.cli import _capacity, _usage
from headrace.histograms import Histogram
from headrace.usage.counts import Series, kind_of
from headrace.usage.reading import Counted

FIRST = "1aaaaaaa-0000-4000-8000-0000000000b1"
SECOND = "1bbbbbbb-0000-4000-8000-0000000000a2"
BUSY = Capacity(
    slots=4,
    free=1,
    busy=3,
    waiting=2,
    waiting_cost=7.0,
    mean_s=0.0123,
    p95_s=0.05,
    cost_s=0.001,
    by_cost=(CostTime(8, 0.01, 0.02),),
    memory=95_000_000,
)


def test_functions_are_told_of_by_runner() -> None:
    reports = {FIRST: Report(functions={"embed": BUSY, "echo": Capacity(slots=1, free=1)})}
    reports[SECOND] = Report(functions={"embed": Capacity(slots=4, warmth="none")})
    lines = [" ".join(line.split()) for line in _capacity.listed(reports, None).splitlines()]
    assert lines[1:] == [
        f"echo {FIRST} 1 1 0 - - - - warm -",
        f"embed {FIRST} 4 1 2 7 0.012 s 0.05 s 0.001 s warm 90.6 MiB",
        f"embed {SECOND} 4 0 0 - - - - none -",
    ]
    assert max(map(len, _capacity.listed(reports, 80).splitlines())) <= 80
    assert "no runner lives" in _capacity.listed({}, None)
    told = _capacity.document(reports)[1]
    assert (told["function"], told["runner_id"], told["by_cost"][0]["cost"]) == ("embed", FIRST, 8)


def counted(kind: str, *values: float, reason: str = "") -> Counted:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    return Counted(
        at=datetime(2024, 3, 1, tzinfo=UTC),
        series=Series("embed", kind, reason, 0),
        device="",
        histogram=histogram,
    )


def test_what_became_of_calls_is_told_with_why() -> None:
    found = [
        counted("served", 0.1, 0.2),
        counted("execution", 0.1, 0.1, 0.1),
        counted("joined", 2, 4),
        counted("refused", 0.01, reason="busy"),
        counted("refused", 0.01, 0.01, reason="backlog-full"),
        counted("failed", 0.01, reason="function-failed"),
        counted("failure", 0.01, 0.01, reason="function-failed"),
        counted("failure", 0.01, reason="cancelled"),
    ]
    table, answers, endings = _usage.listed(found, None).split("\n\n")
    assert " ".join(table.splitlines()[1].split()) == "embed 2 - 3 1 - - 3 0.096 s 0.096 s - 3.0"
    assert answers.splitlines() == [
        "what callers got instead of a result:",
        "  embed: 1 failed: function-failed",
        "  embed: 2 refused: backlog-full",
        "  embed: 1 refused: busy",
    ]
    assert endings.splitlines() == [
        "how executions ended that did not succeed:",
        "  embed: 1 cancelled",
        "  embed: 2 function-failed",
    ]
    assert max(map(len, _usage.listed(found, 80).splitlines())) <= 80
    assert _usage.listed([], None) == "nothing was counted in that time"
    assert _usage.document(found)[0]["number"] == 2


def test_answers_count_as_what_they_mean_for_demand() -> None:
    answers = [(200, ""), (202, ""), (503, "busy"), (429, "over-quota"), (499, "client-left")]
    answers += [(504, "hold-exceeded"), (504, "deadline-exceeded"), (504, "queue-deadline-exceeded")]
    answers += [(500, "function-failed"), (422, "invalid-input")]
    assert [kind_of(status, code) for status, code in answers] == [
        ("served", ""),
        ("accepted", ""),
        ("refused", "busy"),
        ("refused", "over-quota"),
        ("abandoned", ""),
        ("expired", ""),
        ("expired", ""),
        None,  # the ledger has counted the job
        ("failed", "function-failed"),
        None,
    ]
    assert kind_of(504, "queue-deadline-exceeded", was_job=False) == ("expired", "")  # nobody else counts it
