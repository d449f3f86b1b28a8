"""Jobs that a real runner executes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness.event_stream import all_events, reading
from harness.problem import problem
from harness.site import Site


def test_a_job_is_executed(served: Site) -> None:
    job_id = served.submit("echo", {"text": "grüezi", "top_k": 2})
    job = served.get(f"/jobs/{job_id}", Prefer="wait=20").json()

    assert (job["status"], job["attempt"]) == ("succeeded", 1)
    assert job["result"] == {"text": "grüezi", "n": 2, "scores": []}
    assert job["created_at"] <= job["started_at"] <= job["finished_at"] <= job["queue_deadline"]
    assert served.get(f"/jobs/{job_id}/result").json() == job["result"]
    events = all_events(served, job_id)
    assert [event.kind for event in events] == ["state", "state", "result"]
    assert events[-1].data["result"] == job["result"]


def test_the_function_sees_the_job(served: Site) -> None:
    response = served.call("nap", {"seconds": 0.1}, Prefer="respond-async, wait=20")

    assert response.status_code == 200
    assert response.json()["job_id"] == response.headers["Headrace-Job-Id"]
    assert response.json()["attempt"] == 1


@pytest.mark.parametrize(
    ("function", "status", "code"),
    [
        ("refuses", 422, "invalid-input"),
        ("fails", 500, "function-failed"),
        ("breaks", 500, "function-failed"),
        ("lies", 500, "invalid-output"),
    ],
)
def test_a_job_fails_at_once_and_as_a_call_does(served: Site, function: str, status: int, code: str) -> None:
    """Each of these may be started twice."""
    direct = problem(served.call(function, {}), status, code)
    awaited = problem(served.call(function, {}, Prefer="respond-async, wait=20"), status, code)
    job = served.get(f"/jobs/{awaited['job_id']}").json()

    assert (awaited["detail"], awaited.get("errors")) == (direct["detail"], direct.get("errors"))
    assert (job["status"], job["attempt"]) == ("failed", 1)
    assert (job["error"]["category"], job["error"]["message"]) == (code, direct["detail"])


def test_running_out_of_memory_is_tried_again(served: Site) -> None:
    job = served.final(served.submit("swells", {}))

    assert (job["status"], job["attempt"]) == ("succeeded", 2)


def test_a_passing_error_is_tried_again(served: Site) -> None:
    job_id = served.submit("recovers", {})
    steps: list[Any] = [
        (event.data["status"], event.data.get("attempt")) for event in all_events(served, job_id)
    ]

    assert steps == [
        *(("queued", 0), ("running", 1), ("queued", 1), ("running", 2), ("queued", 2), ("running", 3)),
        ("succeeded", 3),
    ]


def test_a_running_job_can_be_cancelled(served: Site, tmp_path: Path) -> None:
    job_id = served.submit("watched", {"path": str(tmp_path / "notes")})
    with reading(served, job_id) as events:
        while events.next("state").data["status"] != "running":
            pass
        # 200 where the runner was quicker than the answer.
        assert served.post(f"/jobs/{job_id}/cancel", b"").status_code in {200, 202}
        assert events.next("state").data["status"] == "cancel_requested"
        assert events.next("error").data["error"]["category"] == "job-cancelled"
        assert list(events) == []
    assert (tmp_path / "notes").read_text() == "started\nstopped\n"
    assert served.post(f"/jobs/{job_id}/cancel", b"").status_code == 200
