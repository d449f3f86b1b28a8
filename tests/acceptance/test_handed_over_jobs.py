"""Jobs that were never queued, as their owners see them: like any other."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import site_functions
from harness.event_stream import all_events
from harness.ledger import new_call, start_of
from harness.ledger_runner import LedgerRunner
from harness.postgres import query
from harness.site import Site

from headrace.ledger.handover import HandedOver

NEWEST_OWNER = "SELECT owner_id::text, key_id::text FROM job ORDER BY id DESC LIMIT 1"


def handed_over(quiet: Site, runner: LedgerRunner) -> HandedOver:
    """A call of the site's own key."""
    runner.end(claimed(quiet, runner))
    ((owner_id, key_id),) = query(quiet.database_url, NEWEST_OWNER)
    echo = site_functions.echo.manifest
    call = new_call(
        owner_id, key_id=key_id, function=echo.name, interface=echo.interface, input=b'{"text": "a"}'
    )
    runner.hand_over(call)
    return call


def claimed(quiet: Site, runner: LedgerRunner) -> Any:
    quiet.submit("echo", {"text": "a"})
    return runner.claim_one("echo")


def seconds(job: dict[str, Any], since: str, until: str) -> float:
    """Between two of its times."""
    first, last = (datetime.fromisoformat(job[name]) for name in (since, until))
    return (last - first).total_seconds()


def test_a_job_that_was_never_queued_is_shown_listed_and_ended(quiet: Site, runner: LedgerRunner) -> None:
    call = handed_over(quiet, runner)
    job = quiet.job(call.job_id)
    assert (job["status"], job["attempt"], job["function"]) == ("running", 1, "echo")
    assert seconds(job, "created_at", "started_at") == 1
    assert seconds(job, "started_at", "deadline") == 602
    listed = quiet.get("/jobs").json()["items"]
    assert listed[0] == job
    runner.progress(start_of(call), 0.5, "half")
    assert quiet.job(call.job_id)["progress"]["fraction"] == 0.5
    runner.end(start_of(call), output=b'{"text": "a"}')
    result = quiet.get(f"/jobs/{call.job_id}/result")
    assert (result.status_code, result.json()) == (200, {"text": "a"})
    assert "queue;dur=1000" in result.headers["Server-Timing"]


def test_its_events_begin_with_the_start(quiet: Site, runner: LedgerRunner) -> None:
    call = handed_over(quiet, runner)
    runner.end(start_of(call), output=b"1")
    first, last = all_events(quiet, call.job_id)
    assert (first.number, first.kind) == (1, "state")
    assert (first.data["status"], first.data["attempt"]) == ("running", 1)
    assert (first.data["by"], first.data["reason"]) == (f"runner:{runner.runner_id}", "handed over")
    assert (last.kind, last.data["result"]) == ("result", 1)


def test_it_can_be_cancelled_and_done_again(quiet: Site, runner: LedgerRunner) -> None:
    call = handed_over(quiet, runner)
    answer = quiet.post(f"/jobs/{call.job_id}/cancel", b"")
    assert (answer.status_code, answer.json()["status"]) == (202, "cancel_requested")
    assert runner.renew(start_of(call)).cancelled == [call.job_id]
    assert runner.end(start_of(call), "failed", category="broken", message="It broke.") == "cancelled"
    again = quiet.post(f"/jobs/{call.job_id}/retry", b"")
    assert again.status_code == 202
    assert seconds(again.json(), "created_at", "deadline") == 603
    start = runner.claim_one("echo")
    assert json.loads(start.input) == {"text": "a"}
