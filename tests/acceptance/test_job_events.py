"""A job's events as a stream: live, from where one left off, and to its end."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import site_functions
from harness.event_stream import all_events, reading
from harness.ledger_runner import LedgerRunner
from harness.postgres import Clones, query
from harness.problem import problem
from harness.site import Site, eventually, site


def finished(quiet: Site, runner: LedgerRunner, kind: Any = "succeeded", **outcome: Any) -> str:
    job_id = quiet.submit("echo", {"text": "a"})
    job = runner.claim_one("echo")
    runner.progress(job, 0.5, "half")
    runner.end(job, kind, **outcome)
    return job_id


def followed(quiet: Site, job_id: str) -> bool:
    return query(quiet.database_url, "SELECT followed FROM job WHERE id = %s", job_id)[0][0]


def told(data: dict[str, Any]) -> tuple[str, int, str]:
    """What every step tells, taken out of its data."""
    assert data.pop("at").endswith("Z")
    assert data.pop("by").startswith("runner:")
    return data.pop("status"), data.pop("attempt"), data.pop("reason")


def test_events_come_as_they_happen(quiet: Site, runner: LedgerRunner) -> None:
    job_id = quiet.submit("echo", {"text": "a"})
    with reading(quiet, job_id) as events:
        headers = events.response.headers
        assert headers["Content-Type"].startswith("text/event-stream")
        assert (headers["Cache-Control"], headers["X-Accel-Buffering"]) == ("no-store", "no")

        number, _, queued = events.next("state")
        assert (number, queued["status"], queued["attempt"]) == (1, "queued", 0)
        assert queued["at"] == quiet.job(job_id)["created_at"]
        assert queued["by"].startswith("key:")

        job = runner.claim_one("echo")
        started = events.next("state")
        assert (started.data["status"], started.data["attempt"]) == ("running", 1)

        runner.progress(job, 0.5, "half")
        progress = events.next("progress")
        assert progress.data == {"fraction": 0.5, "message": "half"}

        runner.end(job, output=b'{"a":\n1}')
        last = events.next("result")
        assert told(last.data) == ("succeeded", 1, "the function returned")
        assert last.data == {"job_id": job_id, "result": {"a": 1}}
        assert number < started.number < progress.number < last.number
        assert list(events) == []


def test_items_and_progress_are_told_in_their_order(quiet: Site, runner: LedgerRunner) -> None:
    job_id = quiet.submit("echo", {"text": "a"})
    job = runner.claim_one("echo")
    runner.add_items(job, 0, b"1", b'{"two":\n2}')
    runner.progress(job, 0.5, "half")
    with reading(quiet, job_id) as events:
        told = [events.next(kind) for kind in ("state", "state", "item", "item", "progress")]
        assert [event.number for event in told] == [1, 2, 3, 4, 5]
        assert [event.data for event in told[2:4]] == [1, {"two": 2}]
        runner.add_items(job, 2, b'"%b"' % (b"x" * 2**18))  # a page of its own
        runner.add_items(job, 3, b"4")
        runner.progress(job, 0.75)
        assert [events.next(kind).number for kind in ("item", "item", "progress")] == [6, 7, 8]
        runner.add_items(job, 4, b"5")
        runner.end(job)
        assert [(event.kind, event.number) for event in events] == [("item", 9), ("result", 10)]
    late = all_events(quiet, job_id, Last_Event_ID="3")
    assert [(event.kind, event.number) for event in late] == [
        ("item", 4),
        ("item", 6),
        ("item", 7),
        ("progress", 8),
        ("item", 9),
        ("result", 10),
    ]


def test_a_start_that_is_lost_is_told(quiet: Site, runner: LedgerRunner) -> None:
    job_id = quiet.submit("echo", {"text": "a"})
    with reading(quiet, job_id) as events:
        assert events.next("state").data["status"] == "queued"
        runner.end(runner.claim_one("echo"), "returned")
        assert events.next("state").data["status"] == "running"
        again = events.next("state")
        assert (again.data["status"], again.data["attempt"]) == ("queued", 1)
        assert quiet.post(f"/jobs/{job_id}/cancel", b"").status_code == 200
        assert events.next("error").data["error"]["category"] == "job-cancelled"


def test_a_job_without_a_result_ends_in_an_error(quiet: Site, runner: LedgerRunner) -> None:
    outcome = {"category": "invalid-input", "message": "no", "errors": (("/a", "no"),)}
    job_id = finished(quiet, runner, "failed", **outcome)

    events = all_events(quiet, job_id)
    assert [event.kind for event in events] == ["state", "state", "progress", "error"]
    error = {"category": "invalid-input", "message": "no", "errors": [{"path": "/a", "message": "no"}]}
    assert told(events[-1].data) == ("failed", 1, "the execution failed")
    assert events[-1].data == {"job_id": job_id, "error": error}


def test_a_large_result_is_told_by_its_address(quiet: Site, runner: LedgerRunner) -> None:
    job_id = finished(quiet, runner, output=b'"%b"' % (b"x" * 2**16))

    last = all_events(quiet, job_id)[-1]
    assert told(last.data) == ("succeeded", 1, "the function returned")
    assert last.data == {"job_id": job_id, "result_url": f"/jobs/{job_id}/result"}


def test_a_reader_goes_on_where_it_left_off(quiet: Site, runner: LedgerRunner) -> None:
    job_id = finished(quiet, runner)
    events = all_events(quiet, job_id)
    assert [event.kind for event in events] == ["state", "state", "progress", "result"]

    for at, event in enumerate(events[:-1], 1):
        assert all_events(quiet, job_id, Last_Event_ID=str(event.number)) == events[at:]
        assert all_events(quiet, job_id, f"?last_event_id={event.number}") == events[at:]
    newer = all_events(quiet, job_id, "?last_event_id=0", Last_Event_ID=str(events[1].number))
    assert newer == events[2:]
    for number in (events[-1].number, 999_999_999):
        response = quiet.get(f"/jobs/{job_id}/events", Last_Event_ID=str(number))
        assert (response.status_code, response.content) == (204, b"")


def test_who_claims_to_know_the_future_learns_of_the_end(quiet: Site, runner: LedgerRunner) -> None:
    job_id = quiet.submit("echo", {"text": "a"})
    with reading(quiet, job_id, Last_Event_ID="999") as events:
        eventually(lambda: followed(quiet, job_id), "it is followed")
        runner.end(runner.claim_one("echo"))
        assert [event.kind for event in events][-1] == "result"


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9999999999"])
def test_what_is_no_number_of_an_event(quiet: Site, runner: LedgerRunner, value: str) -> None:
    job_id = finished(quiet, runner)

    problem(quiet.get(f"/jobs/{job_id}/events", Last_Event_ID=value), 400, "malformed-header")
    problem(quiet.get(f"/jobs/{job_id}/events?last_event_id={value}"), 400, "bad-request")


def test_head_does_not_follow(quiet: Site, runner: LedgerRunner) -> None:
    job_id = quiet.submit("echo", {"text": "a"})
    response = quiet.client.head(f"/jobs/{job_id}/events", headers=quiet.headers())
    runner.claim_one("echo")

    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["Content-Type"].startswith("text/event-stream")


def test_a_gateway_that_ends_lets_its_waiters_go(clones: Clones) -> None:
    with clones.migrated() as url, site(url, runners=0) as alone:
        LedgerRunner(url, [site_functions.echo.manifest]).register()
        eventually(lambda: alone.get("/fn/echo").status_code == 200, "the function is served")
        job_id = alone.submit("echo", {"text": "a"})
        with reading(alone, job_id) as events:
            events.next("state")
            alone["gateway"].signal(signal.SIGTERM)
            assert list(events) == []
        assert alone["gateway"].wait() == 0
        assert not any(line["level"] == "error" for line in alone["gateway"].lines())
