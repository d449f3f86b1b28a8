"""What becomes of a call: an answer, a job that is awaited, at once or from then on, or a refusal."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, eventually, site

FUNCTIONS = "routing_functions"
NEVER = {"Headrace_Async": "never"}


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions=FUNCTIONS) as running:
        yield running


class Gate:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def input(self, mark: str = "a") -> dict[str, str]:
        return {"folder": str(self.folder), "mark": mark}

    def starts(self, mark: str = "a") -> int:
        notes = self.folder / mark
        return len(notes.read_text().split()) if notes.exists() else 0

    def started(self, mark: str = "a") -> None:
        eventually(lambda: self.starts(mark), f"{mark} runs")

    def open(self) -> None:
        (self.folder / "open").touch()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    try:
        yield made
    finally:
        made.open()


@contextlib.contextmanager
def occupied(served: Site, gate: Gate) -> Iterator[None]:
    """The only slot is taken, until the gate is opened."""
    with served.calling(("gated", gate.input("first"))) as (first,):
        gate.started("first")
        try:
            yield
        finally:
            gate.open()
        assert first.result().status_code == 200
        assert gate.starts("first") == 1


def became(served: Site, function: str, reason: str) -> float:
    labels = {"function": function, "reason": reason}
    return served.metric(served["gateway"], "headrace_calls_became_jobs_total", **labels)


def accepted(served: Site, response: httpx2.Response) -> dict[str, Any]:
    """The job of a 202, which is the job as it is asked for."""
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    assert response.headers["Headrace-Job-Id"] == job["job_id"]
    assert response.headers["Location"] == job["status_url"] == f"/jobs/{job['job_id']}"
    assert 2 <= int(response.headers["Retry-After"]) <= 5
    assert job.keys() <= served.job(job["job_id"]).keys()  # it may have ended since
    return job


# ---------------------------------------------------------------------- an answer


def test_a_short_call_is_answered_and_is_no_job(served: Site) -> None:
    response = served.call("paused", {})

    assert (response.status_code, response.json()) == (200, 0)
    assert "Headrace-Job-Id" not in response.headers
    assert "Prefer" in response.headers["Vary"]
    assert served.get("/jobs?function=paused").json()["items"] == []


# ---------------------------------------------------------------------- a job from then on


@pytest.mark.parametrize("prefer", [None, "wait=1"])
def test_a_call_that_outlasts_its_hold_goes_on_as_a_job(served: Site, gate: Gate, prefer: str | None) -> None:
    function = "briefly_held" if prefer is None else "gated"
    before = became(served, function, "handed")
    response = served.call(function, gate.input(), **({} if prefer is None else {"Prefer": prefer}))
    job = accepted(served, response)

    assert (job["status"], job["attempt"], job["function"]) == ("running", 1, function)
    assert response.headers.get("Preference-Applied") == prefer
    gate.open()
    ended = served.final(job["job_id"])
    assert (ended["status"], ended["attempt"]) == ("succeeded", 1)
    assert ended["result"] == {"mark": "a", "attempt": 1, "job_id": job["job_id"]}
    assert gate.starts() == 1
    assert became(served, function, "handed") == before + 1


def test_such_a_job_can_be_cancelled(served: Site, gate: Gate) -> None:
    job = accepted(served, served.call("briefly_held", gate.input()))
    gate.started()

    assert served.post(f"/jobs/{job['job_id']}/cancel", b"").status_code == 202
    assert served.final(job["job_id"])["status"] == "cancelled"
    assert gate.starts() == 1


def test_such_a_job_starts_again_when_its_process_is_lost(served: Site, gate: Gate) -> None:
    job = accepted(served, served.call("dies_first", gate.input()))
    gate.open()

    ended = served.final(job["job_id"])
    assert (ended["status"], ended["attempt"]) == ("succeeded", 2)
    assert gate.starts() == 2


# ---------------------------------------------------------------------- a job that is awaited


def test_a_call_without_room_is_answered_by_its_job_within_the_hold(served: Site, gate: Gate) -> None:
    with occupied(served, gate), served.calling(("paused", {"seconds": 0.01})) as (waiting,):
        job = eventually(lambda: served.get("/jobs?function=paused").json()["items"], "it is a job")[0]
        assert job["status"] == "queued"
        gate.open()
        response = waiting.result()

    assert (response.status_code, response.json()) == (200, 0.01)
    assert response.headers["Headrace-Job-Id"] == job["job_id"]
    assert "queue;dur=" in response.headers["Server-Timing"]


def test_a_call_without_room_is_a_job_at_the_end_of_its_hold(served: Site, gate: Gate) -> None:
    with occupied(served, gate):
        job = accepted(served, served.call("gated", gate.input("second"), Prefer="wait=1"))
        assert (job["status"], gate.starts("second")) == ("queued", 0)

    assert served.final(job["job_id"])["status"] == "succeeded"
    assert gate.starts("second") == 1


def test_of_many_calls_each_is_executed_and_answered_once(served: Site, gate: Gate) -> None:
    gate.open()
    marks = [str(number) for number in range(30)]
    answers = served.at_once([("gated", gate.input(mark)) for mark in marks])

    assert [answer.status_code for answer in answers] == [200] * 30
    assert [answer.json()["mark"] for answer in answers] == marks
    assert [gate.starts(mark) for mark in marks] == [1] * 30


# ---------------------------------------------------------------------- a job at once


def test_with_nothing_to_wait_a_call_is_a_job_at_once(served: Site, gate: Gate) -> None:
    before = became(served, "gated", "wait=0")
    job = accepted(served, served.call("gated", gate.input(), Prefer="wait=0"))

    assert (job["status"], job["attempt"]) == ("queued", 0)
    assert became(served, "gated", "wait=0") == before + 1
    gate.open()
    assert served.final(job["job_id"])["status"] == "succeeded"


def test_what_has_taken_longer_than_the_hold_before_is_a_job_at_once(clones: Clones) -> None:
    with clones.migrated() as url, site(url, functions=FUNCTIONS) as fresh:
        for _ in range(5):
            assert fresh.call("paused", {"seconds": 1.1}).status_code == 200

        def known() -> int:
            (runner,) = fresh.get("/fn/paused").json()["live"]
            return (runner["capacity"] or {}).get("known", 0)

        eventually(lambda: known() >= 5, "the gateway was told")
        job = accepted(fresh, fresh.call("paused", {"seconds": 0}, Prefer="wait=1"))

        assert job["attempt"] == 0
        assert became(fresh, "paused", "over-hold") == 1
        assert fresh.final(job["job_id"])["result"] == 0
        assert fresh.call("paused", {"seconds": 0}, Prefer="wait=5").status_code == 200  # it should fit
        assert fresh.call("paused", {"seconds": 0}, Prefer="wait=1", **NEVER).status_code == 200


# ---------------------------------------------------------------------- a job is no answer


def test_never_ends_with_the_hold(served: Site, gate: Gate) -> None:
    problem(served.call("briefly_held", gate.input(), **NEVER), 504, "hold-exceeded")

    gate.open()
    eventually(lambda: served.call("paused", {}, **NEVER).status_code == 200, "the slot is free again")
    assert served.get("/jobs?function=briefly_held&status=running").json()["items"] == []


def test_never_is_refused_where_there_is_no_room(served: Site, gate: Gate) -> None:
    before = len(served.get("/jobs?limit=200").json()["items"])
    with occupied(served, gate):
        problem(served.call("gated", gate.input("second"), **NEVER), 503, "busy")
        problem(served.call("gated", gate.input("second"), Prefer="wait=1", **NEVER), 503, "busy")
        problem(served.call("gated", gate.input("second"), Prefer="wait=0", **NEVER), 504, "hold-exceeded")

    assert gate.starts("second") == 0
    assert len(served.get("/jobs?limit=200").json()["items"]) == before


def test_never_with_nothing_to_wait_is_refused_though_a_runner_is_free(served: Site, gate: Gate) -> None:
    document = problem(served.call("gated", gate.input(), Prefer="wait=0", **NEVER), 504, "hold-exceeded")

    assert "job_id" not in document
    assert gate.starts() == 0


def test_never_outweighs_respond_async(served: Site) -> None:
    response = served.call("paused", {}, Prefer="respond-async, wait=5", **NEVER)

    assert response.status_code == 200
    assert response.headers["Preference-Applied"] == "wait=5"
    assert "Headrace-Job-Id" not in response.headers


def test_with_a_key_never_names_the_job_that_goes_on(served: Site, gate: Gate) -> None:
    response = served.call("briefly_held", gate.input(), Idempotency_Key="never-1", **NEVER)
    document = problem(response, 504, "hold-exceeded")

    assert document["job_id"] == response.headers["Headrace-Job-Id"]
    gate.open()
    assert served.final(document["job_id"])["status"] == "succeeded"
    again = served.call("briefly_held", gate.input(), Idempotency_Key="never-1", **NEVER)
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")


@pytest.mark.parametrize("value", ["always", "", "never, never", "1"])
def test_nothing_else_can_be_said_of_it(served: Site, value: str) -> None:
    assert (
        "never" in problem(served.call("paused", {}, Headrace_Async=value), 400, "malformed-header")["detail"]
    )


# ---------------------------------------------------------------------- explained


def explained(served: Site, function: str, input: Any, **headers: str) -> dict[str, Any]:
    content = json.dumps(input).encode()
    response = served.post(f"/fn/{function}?explain=1", content, **headers)
    assert response.status_code == 200, response.text
    return response.json()


def test_what_would_become_of_a_call_is_told_and_nothing_is_executed(served: Site, gate: Gate) -> None:
    jobs = len(served.get("/jobs?limit=200").json()["items"])

    def told(**headers: str) -> tuple[str, str, float]:
        found = explained(served, "gated", gate.input(), **headers)
        return found["decision"], found["reason"], found["hold_s"]

    assert told() == ("runner", "room", 30)
    assert told(Prefer="wait=0") == ("job", "wait=0", 0)
    assert told(Prefer="respond-async") == ("job", "asked", 0)
    assert told(Prefer="respond-async, wait=5") == ("job", "asked", 5)
    assert told(Idempotency_Key="explained") == ("job", "key", 30)
    assert told(Prefer="respond-async", **NEVER) == ("runner", "room", 30)
    assert told(Prefer="wait=0", **NEVER) == ("refused", "hold-exceeded", 0)
    assert told(Accept="text/event-stream") == ("runner", "room", 125)

    found = explained(served, "gated", gate.input())
    assert (found["deadline_s"], found["brief_wait_s"], found["retry_after"]) == (125, 0.25, None)
    assert found["predicted"].keys() == served.get("/fn/gated").json()["predicted"].keys()
    assert gate.starts() == 0
    assert len(served.get("/jobs?limit=200").json()["items"]) == jobs


def test_an_explanation_is_checked_as_a_call_is(served: Site) -> None:
    problem(served.post("/fn/gated?explain=1", b"{}"), 422, "invalid-input")
    for query in ("explain=true", "explain=", "explain=1&explain=1"):
        problem(served.post(f"/fn/paused?{query}", b"{}"), 400, "bad-request")


# ---------------------------------------------------------------------- streams


def events(response: httpx2.Response) -> list[tuple[str, Any]]:
    blocks = [block for block in response.text.split("\n\n") if "event: " in block]
    fields = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    return [(one["event"], json.loads(one["data"])) for one in fields]


def test_a_stream_is_not_bounded_by_the_hold(served: Site, gate: Gate) -> None:
    call = ("briefly_held", gate.input())
    with served.calling(call, Accept="text/event-stream") as (streamed,):
        gate.started()
        again = served.call("paused", {}, Prefer="wait=1")  # its own hold passes meanwhile
        gate.open()
        response = streamed.result()

    assert again.status_code in {200, 202}
    assert response.status_code == 200
    assert "Headrace-Job-Id" not in response.headers
    assert events(response)[-1][0] == "result"


def test_a_stream_without_room_is_that_of_its_job(served: Site, gate: Gate) -> None:
    with occupied(served, gate):
        problem(served.call("gated", gate.input("x"), Accept="text/event-stream", **NEVER), 503, "busy")
        with served.calling(("gated", gate.input("second")), Accept="text/event-stream") as (streamed,):
            queued = "/jobs?function=gated&status=queued"
            eventually(lambda: served.get(queued).json()["items"], "it is a job")
            gate.open()
            response = streamed.result()

    job_id = response.headers["Headrace-Job-Id"]
    assert (response.status_code, response.headers["Location"]) == (200, f"/jobs/{job_id}")
    told = events(response)
    assert [kind for kind, _ in told] == ["state", "state", "result"]
    assert told[-1][1]["result"]["mark"] == "second"
    assert gate.starts("second") == 1
