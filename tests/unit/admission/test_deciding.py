"""The rule: its table in docs/admission.md, and what holds for all figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.admission import (
    Decision,
    Job,
    Predicted,
    Refused,
    Snapshot,
    Span,
    Sync,
    Wish,
    decide,
    ends_within,
    may_start_soon,
)

PAGE: Final = Path(__file__).parents[3] / "docs" / "admission.md"
BRIEF_S: Final = 0.25
WISHES: Final = {
    "nothing": Wish(),
    "nothing, Postgres away": Wish(),
    "`wait=1`": Wish(),
    "`wait=0`": Wish(),
    "a stream": Wish(),
    "a deadline of 5 s": Wish(),
    "`respond-async`": Wish(respond_async=True),
    "`respond-async, wait=5`": Wish(respond_async=True),
    "a key": Wish(has_key=True),
    "`never`": Wish(takes_job=False),
    "`never`, 30 s of jobs": Wish(takes_job=False),
}
BACK_S: Final = 40.0


def table() -> Iterator[list[str]]:
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] in WISHES:
            yield cells


def snapshot_of(wish: str, wait: str, loading: str, p95: str) -> Snapshot:
    if wait in ("no runner", "degraded"):
        return Snapshot(None, BRIEF_S, degraded=wait == "degraded", back_s=BACK_S)
    knows_wait, is_known = wait != "unknown", p95 != "unknown"
    wait_s, load_s = float(wait) if knows_wait else 0.0, float(loading)
    p95_s = float(p95) if is_known else 1e6  # what isn't known is to count nothing
    return Snapshot(
        Predicted(
            wait_s,
            load_s,
            p95_s / 2,
            p95_s,
            is_known=is_known,
            has_room=wait == "0",
            is_cold=load_s > 0,
            knows_wait=knows_wait,
        ),
        BRIEF_S,
        records="Postgres away" not in wish,
        clear_s=30.0 if "of jobs" in wish else 0.0,
    )


def in_words(decision: Decision) -> str:
    match decision:
        case Sync():
            return "a runner"
        case Job():
            return "a job at once" if decision.at_once else f"a job, awaited {decision.hold:g} s"
        case Refused(code, seconds):
            return f"nobody: `{code}`" + ("" if seconds is None else f", again in {seconds:g} s")


def test_the_page_has_a_row_for_every_wish_and_every_answer() -> None:
    rows = list(table())
    assert {row[0] for row in rows} == set(WISHES)
    assert len(rows) == len({tuple(row[:-1]) for row in rows})
    answers = {re.sub(r" [\d.]+ s$", "", row[-1]) for row in rows}
    assert len(answers) == 7


@pytest.mark.parametrize("row", list(table()), ids=" | ".join)
def test_the_rule_is_as_the_page_says(row: list[str]) -> None:
    wish, hold, wait, loading, p95, answer = row
    span = Span(float(hold), 5.0 if "deadline" in wish else 105.0)
    assert in_words(decide(span, WISHES[wish], snapshot_of(wish, wait, loading, p95))) == answer


# ---------------------------------------------------------------------- for all figures

SECONDS = st.floats(0, 1e4)
PREDICTIONS = st.builds(
    Predicted,
    wait_s=SECONDS,
    load_s=st.just(0.0) | SECONDS,
    exec_s=SECONDS,
    exec_p95_s=SECONDS,
    is_known=st.booleans(),
    has_room=st.booleans(),
    is_cold=st.booleans(),
    knows_wait=st.booleans(),
)
SNAPSHOTS = st.builds(
    Snapshot,
    st.none() | PREDICTIONS,
    st.floats(0, 10),
    st.booleans(),
    st.booleans(),
    SECONDS,
    st.just(0.0) | SECONDS,
)
ALL_WISHES = st.builds(Wish, st.booleans(), st.booleans(), st.booleans())
SPANS = st.builds(lambda hold, rest: Span(hold, hold + rest), st.just(0.0) | SECONDS, SECONDS)


@given(SPANS, ALL_WISHES, SNAPSHOTS)
def test_no_call_that_takes_a_job_is_sent_to_a_runner_beyond_its_hold(
    span: Span, wish: Wish, snapshot: Snapshot
) -> None:
    decision = decide(span, wish, snapshot)
    if isinstance(decision, Sync) and wish.takes_job:
        assert snapshot.predicted is not None
        assert decision.hold == span.hold
        assert snapshot.predicted.total_s <= span.hold or span.hold == span.total


@given(SPANS, ALL_WISHES, SNAPSHOTS)
def test_none_is_refused_where_there_is_room(span: Span, wish: Wish, snapshot: Snapshot) -> None:
    decision = decide(span, wish, snapshot)
    if isinstance(decision, Refused) and (predicted := snapshot.predicted) is not None:
        assert not wish.takes_job
        if span.hold <= 0:
            assert decision == Refused("hold-exceeded", None)
        else:
            assert decision.code == "busy"
            assert predicted.wait_s > span.hold
            assert not predicted.has_room


@given(SPANS, ALL_WISHES, SNAPSHOTS, SECONDS)
def test_a_longer_hold_makes_no_job_and_no_refusal_of_a_call_that_a_runner_gets(
    span: Span, wish: Wish, snapshot: Snapshot, more: float
) -> None:
    longer = Span(span.hold + more, span.total + more)
    if isinstance(decide(span, wish, snapshot), Sync):
        assert isinstance(decide(longer, wish, snapshot), Sync)


@given(SPANS, SNAPSHOTS, SECONDS, SECONDS)
def test_a_longer_wait_or_more_jobs_never_shorten_the_retry_after(
    span: Span, snapshot: Snapshot, more: float, jobs_s: float
) -> None:
    never = Wish(takes_job=False)
    decision = decide(span, never, snapshot)
    if isinstance(decision, Refused) and (predicted := snapshot.predicted) is not None and span.hold > 0:
        longer = predicted._replace(wait_s=predicted.wait_s + more)
        deeper = decide(span, never, snapshot._replace(predicted=longer, clear_s=snapshot.clear_s + jobs_s))
        assert isinstance(deeper, Refused)
        assert deeper.retry_after_s is not None
        assert decision.retry_after_s is not None
        assert deeper.retry_after_s >= decision.retry_after_s


@given(SPANS, ALL_WISHES, SNAPSHOTS)
def test_a_connection_is_never_held_longer_than_its_hold(span: Span, wish: Wish, snapshot: Snapshot) -> None:
    decision = decide(span, wish, snapshot)
    if not isinstance(decision, Refused):
        assert decision.hold <= span.hold


@given(SPANS, SNAPSHOTS)
def test_what_takes_no_job_becomes_none(span: Span, snapshot: Snapshot) -> None:
    assert not isinstance(decide(span, Wish(takes_job=False), snapshot), Job)
    assert not isinstance(decide(span, Wish(respond_async=True, takes_job=False), snapshot), Job)


@given(PREDICTIONS, st.floats(0, 10))
def test_a_free_slot_is_room(predicted: Predicted, brief_wait: float) -> None:
    assert may_start_soon(predicted._replace(has_room=True), brief_wait)


@given(st.none() | SECONDS, st.none() | PREDICTIONS, SECONDS, SECONDS)
def test_whether_a_job_may_end_within_what_is_left_of_its_hold(
    wait_s: float | None, predicted: Predicted | None, hold: float, more: float
) -> None:
    may = ends_within(hold, wait_s, predicted)
    if wait_s is None:
        assert may
        return
    assert may <= ends_within(hold + more, wait_s, predicted)  # a longer hold never sends away
    assert may >= ends_within(hold, wait_s + more, predicted)
    p95_s = predicted.exec_p95_s if predicted is not None and predicted.is_known else 0.0
    load_s = 0.0 if predicted is None else predicted.load_s
    assert may == (wait_s + load_s + p95_s <= hold)
