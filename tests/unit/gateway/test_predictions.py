"""How true predictions were: in the access line, and counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from harness.scripted_calls import flexible

from headrace.admission import Predicted
from headrace.gateway import foretold
from headrace.gateway.asked import Asked
from headrace.gateway.exchange import Exchange
from headrace.gateway.job_asked import JobCall
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.predictions import of_call, of_job
from headrace.ledger.submission import Receipt

BRIEF_S: Final = 0.25
KNOWN: Final = Predicted(0.0, 0.0, 1.0, 2.0)
NOBODY: Final = cast("Any", None)


def exchange(metrics: GatewayMetrics, course: Any, predicted: Predicted | None = KNOWN) -> Exchange:
    of_one = metrics.of("echo")
    one = Exchange({}, "job", "request", NOBODY, NOBODY, of_one, function="echo", course=course)
    one.status = 200
    if isinstance(course, Asked):
        course.predicted = predicted
    return one


def direct(queue_ms: float, exec_ms: float, attempt: int = 1) -> Asked:
    asked = flexible(hold=10)
    asked.queue_ms, asked.exec_ms, asked.attempt = queue_ms, exec_ms, attempt
    return asked


def job(
    queue_ms: float, exec_ms: float, receipt: Receipt | None, attempt: int = 1, given: int = 0
) -> JobCall:
    """A call whose job has had that many starts, some of them as a direct call."""
    new = cast("Any", SimpleNamespace(attempt=given))
    call = JobCall(new, 10, 60, is_async=False, predicted=KNOWN, receipt=receipt)
    call.queue_ms, call.exec_ms, call.attempt = queue_ms, exec_ms, attempt
    return call


def accepted(wait_s: float | None, outcome: Any = "accepted") -> Receipt:
    return Receipt(job_id="job", outcome=outcome, state="queued", outstanding=1, wait_s=wait_s, **_TIMES)


_TIMES: Final[dict[str, Any]] = {"created_at": None, "queue_deadline_at": None, "deadline_at": None}


def counted(metrics: GatewayMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, {"function": "echo", **labels}) or 0.0


@pytest.mark.parametrize(
    ("predicted", "told"),
    [
        (KNOWN, {"predicted_wait_ms": 0, "predicted_ms": 1000}),
        (KNOWN._replace(is_known=False), {"predicted_wait_ms": 0}),
        (KNOWN._replace(wait_s=0.1, has_room=False, is_known=False), {"predicted_wait_ms": 100}),
        (KNOWN._replace(wait_s=9.0, has_room=False, is_known=False), {"predicted_wait_ms": 250}),
        (KNOWN._replace(has_room=False, knows_wait=False, is_known=False), {}),  # nothing has ended there
        (KNOWN._replace(is_cold=True, load_s=4.0, is_known=False), {"predicted_wait_ms": 4000}),
        (KNOWN._replace(is_cold=True, is_known=False), {}),
    ],
)
def test_what_the_line_of_a_direct_call_tells(predicted: Predicted, told: dict[str, float]) -> None:
    assert of_call(predicted, BRIEF_S).told() == told


def test_what_the_line_of_a_job_tells() -> None:
    told = of_job(KNOWN._replace(load_s=0.5), 3.0).told()
    assert (told["predicted_wait_ms"], told["predicted_ms"]) == (3000, 4500)
    assert of_job(None, 3.0).told() == {"predicted_wait_ms": 3000}
    assert "predicted_ms" not in of_job(KNOWN, None).told()


@pytest.mark.parametrize(
    ("predicted_s", "measured_ms", "within"),
    [
        (2.0, 2500, "near"),  # a fifth
        (0.0, 50, "near"),
        (0.0, 51, "far"),
        (1.0, 2500, "far"),
        (0.0, 201, "off"),
        (9.0, 5000, "off"),
    ],
)
def test_how_near_the_predicted_wait_of_a_job_was(
    predicted_s: float, measured_ms: float, within: str
) -> None:
    metrics = GatewayMetrics()
    foretold.settle(exchange(metrics, job(measured_ms, 500, accepted(predicted_s))), BRIEF_S)
    for one in ("near", "far", "off"):
        counts = counted(metrics, "headrace_predicted_waits_total", way="job", within=one)
        assert counts == (one == within)
    error_s = counted(metrics, "headrace_predicted_wait_error_seconds_sum", way="job")
    assert error_s == pytest.approx(abs(predicted_s - measured_ms / 1000))


@pytest.mark.parametrize(
    ("predicted_s", "unstarted_s", "off"),
    [(1.0, 2.5, 0), (1.0, 2.6, 1), (0.0, 0.2, 0), (0.0, 0.3, 1), (9.0, 8.0, 0), (None, 50.0, 0)],
)
def test_a_job_that_has_not_started_counts_once_its_prediction_must_be_off(
    predicted_s: float | None, unstarted_s: float, off: int
) -> None:
    metrics = GatewayMetrics()
    waits = job(0, 0, accepted(predicted_s), attempt=0)
    waits.unstarted_s = unstarted_s
    foretold.settle(exchange(metrics, waits), BRIEF_S)
    found = {
        one: counted(metrics, "headrace_predicted_waits_total", way="job", within=one)
        for one in ("near", "far", "off")
    }
    assert found == {"near": 0, "far": 0, "off": off}


def test_executions_are_counted_by_whether_they_took_longer_than_95_of_100_should() -> None:
    metrics = GatewayMetrics()
    for exec_ms in (500, 2000, 2001):
        foretold.settle(exchange(metrics, direct(1, exec_ms)), BRIEF_S)
    foretold.settle(exchange(metrics, job(3000, 5000, accepted(3.0))), BRIEF_S)
    assert counted(metrics, "headrace_predicted_executions_total", within="p95") == 2
    assert counted(metrics, "headrace_predicted_executions_total", within="over") == 2
    name = "headrace_predicted_execution_error_seconds"
    assert counted(metrics, f"{name}_count") == 4
    assert counted(metrics, f"{name}_sum") == pytest.approx(0.5 + 1.0 + 1.001 + 4.0)
    assert counted(metrics, f"{name}_bucket", le="0.5") == 1
    assert counted(metrics, f"{name}_bucket", le="1.0") == 2
    assert counted(metrics, f"{name}_bucket", le="+Inf") == 4


def test_a_call_that_outlasted_its_hold_has_taken_too_long_though_its_end_is_not_seen() -> None:
    metrics = GatewayMetrics()
    asked = direct(0, 0)
    asked.is_handed_over = True
    one = exchange(metrics, asked)
    one.status = 202
    foretold.settle(one, BRIEF_S)
    assert counted(metrics, "headrace_predicted_executions_total", within="over") == 1
    assert counted(metrics, "headrace_predicted_execution_error_seconds_count") == 0


def test_a_job_that_still_runs_counts_by_its_wait_only() -> None:
    metrics = GatewayMetrics()
    foretold.settle(exchange(metrics, job(3000, 0, accepted(3.0))), BRIEF_S)
    assert counted(metrics, "headrace_predicted_waits_total", way="job", within="near") == 1
    assert counted(metrics, "headrace_predicted_execution_error_seconds_count") == 0


@pytest.mark.parametrize(
    "course",
    [
        direct(1, 1, attempt=2),
        job(1, 1, accepted(1.0), attempt=2),
        job(0, 0, accepted(1.0), attempt=0),  # it waits
        job(0, 0, accepted(1.0), attempt=1, given=1),  # for its second start: the first was a direct call
        job(5, 5, accepted(1.0), attempt=2, given=1),
        job(1, 1, accepted(None, "replayed")),
        job(0, 0, None, attempt=0),
        None,
    ],
)
def test_what_was_not_predicted_or_started_again_is_not_counted(course: Any) -> None:
    metrics = GatewayMetrics()
    foretold.settle(exchange(metrics, course), BRIEF_S)
    found = [
        sample
        for family in metrics.registry.collect()
        if family.name.startswith("headrace_predicted")
        for sample in family.samples
    ]
    assert found == []


def test_a_job_tells_what_became_of_its_place() -> None:
    assert foretold.settle(exchange(GatewayMetrics(), job(0, 0, None)), BRIEF_S) == {"place": ""}
