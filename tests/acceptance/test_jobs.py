"""The ledger over HTTP: one job, its result, cancelling it, lists, and whose jobs one sees."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from harness.ledger_runner import LedgerRunner
from harness.postgres import query
from harness.problem import problem
from harness.site import Site, eventually

from headrace.database import Database
from headrace.keys import create_key

UNKNOWN = "01900000-0000-7000-8000-000000000000"


def submit(quiet: Site, **headers: str) -> str:
    return quiet.submit("echo", {"text": "a"}, **headers)


def cancel(quiet: Site, job_id: str, **headers: str) -> httpx2.Response:
    return quiet.post(f"/jobs/{job_id}/cancel", b"", **headers)


def finished(quiet: Site, runner: LedgerRunner, kind: Any = "succeeded", **outcome: Any) -> str:
    job_id = submit(quiet)
    runner.end(runner.claim_one("echo"), kind, **outcome)
    return job_id


def make_key(quiet: Site, owner: str, **options: Any) -> str:
    async def make() -> str:
        async with await Database.open(quiet.database_url, application_name="test") as database:
            return await create_key(database, owner, **options)

    return f"Bearer {asyncio.run(make())}"


# ---------------------------------------------------------------------- one job


def test_a_job_tells_how_it_goes(quiet: Site, runner: LedgerRunner) -> None:
    job_id = submit(quiet)
    first = quiet.get(f"/jobs/{job_id}")
    assert re.fullmatch("[2-5]", first.headers["Retry-After"])
    assert first.headers["Cache-Control"] == "no-store"
    assert first.headers["Headrace-Job-Id"] == job_id

    job = runner.claim_one("echo")
    runner.progress(job, 0.25, "a quarter")
    running = quiet.job(job_id)
    assert (running["status"], running["attempt"]) == ("running", 1)
    assert running["progress"] == {"fraction": 0.25, "message": "a quarter"}
    assert running["started_at"] is not None

    assert runner.end(job, "failed", category="attempts-exhausted", message="no") == "failed"
    failed = quiet.get(f"/jobs/{job_id}")
    assert "Retry-After" not in failed.headers
    assert failed.json()["status"] == "failed"
    assert failed.json()["error"] == {"category": "attempts-exhausted", "message": "no"}
    assert "result" not in failed.json()


@pytest.mark.parametrize(("size", "is_inline"), [(2**16, True), (2**16 + 1, False)])
def test_a_small_result_is_part_of_the_job(
    quiet: Site, runner: LedgerRunner, size: int, is_inline: bool
) -> None:
    output = b'"%b"' % (b"x" * (size - 2))
    job_id = finished(quiet, runner, output=output)

    job = quiet.job(job_id)
    assert ("result" in job, "result_url" in job) == (is_inline, not is_inline)
    response = quiet.get(job.get("result_url", f"/jobs/{job_id}/result"))
    assert (response.status_code, response.content) == (200, output)
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Server-Timing"].startswith("queue;dur=")


def test_waiting_for_a_job_ends_with_it(quiet: Site, runner: LedgerRunner) -> None:
    job_id = submit(quiet)
    job = runner.claim_one("echo")
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(quiet.get, f"/jobs/{job_id}", Prefer="wait=20") for _ in range(3)]
        eventually(lambda: waits(quiet, job_id), "somebody waits")
        runner.end(job)
        answers = [one.result(30) for one in waiting]

    for answer in answers:
        assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
        assert answer.headers["Preference-Applied"] == "wait=20"
        assert answer.elapsed.total_seconds() < 10


def waits(quiet: Site, job_id: str) -> bool:
    return query(quiet.database_url, "SELECT waiters <> '{}' FROM job WHERE id = %s", job_id)[0][0]


def test_waiting_ends_when_its_time_is_up(quiet: Site, runner: LedgerRunner) -> None:
    job_id = submit(quiet)
    response = quiet.get(f"/jobs/{job_id}", Prefer="wait=1")
    runner.claim_one("echo")

    assert response.json()["status"] == "queued"
    assert 1 <= response.elapsed.total_seconds() < 4


def test_a_lost_notification_costs_a_second(quiet: Site, runner: LedgerRunner) -> None:
    job_id = submit(quiet)
    job = runner.claim_one("echo")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(quiet.get, f"/jobs/{job_id}", Prefer="wait=20")
        eventually(lambda: waits(quiet, job_id), "somebody waits")
        query(quiet.database_url, "UPDATE job SET waiters = '{}' WHERE id = %s", job_id)
        runner.end(job)
        answer = waiting.result(30)

    assert answer.json()["status"] == "succeeded"
    assert answer.elapsed.total_seconds() < 5


def test_a_job_that_is_past_its_time_has_expired(quiet: Site, runner: LedgerRunner) -> None:
    job_id = submit(quiet, Headrace_Deadline="0.2")

    assert quiet.get(f"/jobs/{job_id}", Prefer="wait=10").json()["status"] == "expired"
    assert quiet.job(job_id)["error"]["category"] == "queue-deadline-exceeded"
    assert not runner.claim("echo")


# ---------------------------------------------------------------------- its result


def test_there_is_no_result_before_the_end(quiet: Site, runner: LedgerRunner) -> None:
    job_id = submit(quiet)
    response = quiet.get(f"/jobs/{job_id}/result")
    runner.claim_one("echo")

    problem(response, 409, "not-finished")
    assert re.fullmatch("[2-5]", response.headers["Retry-After"])


def test_a_job_that_failed_has_no_result(quiet: Site, runner: LedgerRunner) -> None:
    job_id = finished(quiet, runner, "failed", category="function-failed", message="It burnt.")

    document = problem(quiet.get(f"/jobs/{job_id}/result"), 409, "no-result")
    assert document["detail"] == "The job has no result: it failed."
    assert document["error"] == {"category": "function-failed", "message": "It burnt."}


def test_a_large_result_is_sent_piece_by_piece(quiet: Site, runner: LedgerRunner) -> None:
    output = json.dumps(list(range(500_000))).encode()
    assert len(output) > 3 * 2**20
    job_id = finished(quiet, runner, output=output)

    response = quiet.get(f"/jobs/{job_id}/result")
    assert (response.status_code, response.content) == (200, output)
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Headrace-Job-Id"] == job_id
    head = quiet.client.head(f"/jobs/{job_id}/result", headers=quiet.headers())
    assert (head.status_code, head.headers["Content-Length"], head.content) == (200, str(len(output)), b"")


def test_a_result_expires(quiet: Site, runner: LedgerRunner) -> None:
    job_id = finished(quiet, runner)
    query(
        quiet.database_url,
        "UPDATE job SET result_expires_at = '2020-02-02T20:20:20Z' WHERE id = %s",
        job_id,
    )

    document = problem(quiet.get(f"/jobs/{job_id}/result"), 410, "result-expired")
    assert document["expired_at"] == "2020-02-02T20:20:20.000Z"
    job = quiet.job(job_id)
    assert (job["status"], "result" in job) == ("succeeded", False)


# ---------------------------------------------------------------------- cancelling


def test_a_waiting_job_is_cancelled_at_once(quiet: Site, runner: LedgerRunner) -> None:
    job_id = submit(quiet)
    first = cancel(quiet, job_id)
    again = cancel(quiet, job_id)

    assert (first.status_code, first.json()["status"]) == (200, "cancelled")
    assert first.json()["error"]["category"] == "job-cancelled"
    assert (again.status_code, again.content) == (200, first.content)
    assert not runner.claim("echo")
    assert query(
        quiet.database_url, "SELECT actor LIKE 'key:%%' FROM job_event WHERE job_id = %s", job_id
    ) == [(True,), (True,)]


def test_a_running_job_is_asked_to_end(quiet: Site, runner: LedgerRunner) -> None:
    job_id = submit(quiet)
    job = runner.claim_one("echo")
    for _ in range(2):
        response = cancel(quiet, job_id)
        assert (response.status_code, response.json()["status"]) == (202, "cancel_requested")
        assert response.headers["Location"] == f"/jobs/{job_id}"
        assert re.fullmatch("[2-5]", response.headers["Retry-After"])
    assert runner.renew(job).cancelled == [job_id]

    assert runner.end(job) == "cancelled"
    assert cancel(quiet, job_id).status_code == 200
    problem(quiet.get(f"/jobs/{job_id}/result"), 409, "no-result")


@pytest.mark.parametrize("kind", ["succeeded", "failed"])
def test_what_has_ended_cannot_be_cancelled(quiet: Site, runner: LedgerRunner, kind: str) -> None:
    outcome = {} if kind == "succeeded" else {"category": "function-failed", "message": "no"}
    job_id = finished(quiet, runner, kind, **outcome)

    assert kind in problem(cancel(quiet, job_id), 409, "already-finished")["detail"]
    assert quiet.job(job_id)["status"] == kind


# ---------------------------------------------------------------------- lists


def test_lists_are_read_page_by_page(quiet: Site, runner: LedgerRunner) -> None:
    headers = {"Authorization": make_key(quiet, "reader of lists")}
    made = [submit(quiet, **headers) for _ in range(5)]
    runner.claim("echo", 5)

    found: list[str] = []
    path, cursor = "/jobs?limit=2&function=echo&status=running", None
    for size in (2, 2, 1):
        page = quiet.get(path, **headers)
        found += [job["job_id"] for job in page.json()["items"]]
        assert len(page.json()["items"]) == size
        cursor = page.json()["next"]
        if cursor is not None:
            match = re.fullmatch('<(.*)>; rel="next"', page.headers["Link"])
            assert match is not None
            path = match[1]
            assert f"cursor={cursor}" in path
            assert quiet.get(f"/jobs?limit=2&cursor={cursor}", **headers).json() == (
                quiet.get(path, **headers).json()
            )
    assert (cursor, "Link" in page.headers) == (None, False)
    assert found == made[::-1]


def test_lists_can_be_narrowed(quiet: Site, runner: LedgerRunner) -> None:
    headers = {"Authorization": make_key(quiet, "narrow")}
    done = submit(quiet, **headers)
    runner.end(runner.claim_one("echo"))
    waiting = submit(quiet, **headers)
    other = quiet.submit("nap", {"seconds": 0}, **headers)

    def listed(filters: str) -> list[str]:
        return [job["job_id"] for job in quiet.get(f"/jobs{filters}", **headers).json()["items"]]

    assert listed("") == [other, waiting, done]
    assert listed("?status=succeeded") == [done]
    assert listed("?function=echo") == [waiting, done]
    assert listed("?function=nap&status=succeeded") == []
    (job,) = quiet.get("/jobs?status=succeeded", **headers).json()["items"]
    assert job["result_url"] == f"/jobs/{done}/result"
    runner.claim("echo")
    runner.claim("nap")


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ("limit=0", "1 to 200"),
        ("limit=201", "1 to 200"),
        ("limit=x", "1 to 200"),
        ("limit=", "1 to 200"),
        ("limit=1e1", "1 to 200"),
        ("status=done", "`cancel_requested`"),
        ("status=Queued", "`queued`"),
        ("function=nobodys", "`echo`"),
        ("cursor=x", "`next`"),
        ("stauts=queued", "`status`"),
        ("limit=1&limit=2", "twice"),
        ("status=%00", "`queued`"),
    ],
)
def test_a_list_cannot_be_asked_for_so(quiet: Site, runner: LedgerRunner, asked: str, allowed: str) -> None:
    assert allowed in problem(quiet.get(f"/jobs?{asked}"), 400, "bad-request")["detail"]


# ---------------------------------------------------------------------- whose


def test_what_is_not_mine_is_not_there(quiet: Site, runner: LedgerRunner) -> None:
    job_id = submit(quiet)
    runner.claim_one("echo")
    stranger = {"Authorization": make_key(quiet, "stranger"), "X_Request_Id": "same"}
    mine = {"X_Request_Id": "same"}
    for method, suffix in (
        *(("GET", ""), ("GET", "/result"), ("GET", "/events"), ("POST", "/cancel")),
        *(("HEAD", ""), ("HEAD", "/result"), ("HEAD", "/events")),
    ):
        answers = [
            quiet.client.request(method, f"/jobs/{name}{suffix}", headers=quiet.headers(**headers))
            for name, headers in (
                (job_id, stranger),
                (UNKNOWN, mine),
                (UNKNOWN, stranger),
                (str(uuid.uuid4()), mine),
                ("x", mine),
                (job_id.upper(), mine),
                (job_id.replace("-", ""), mine),
                (f"{job_id}%00", mine),
                ("%C3%A9" * 40, mine),
            )
        ]
        if method != "HEAD":
            problem(answers[0], 404, "unknown-job")
        assert {answer.status_code for answer in answers} == {404}
        assert len({answer.content for answer in answers}) == 1
        told = [{**answer.headers, "date": ""} for answer in answers]
        assert all(one == told[0] for one in told)
    assert quiet.get("/jobs", **stranger).json() == {"items": [], "next": None}
    assert quiet.job(job_id)["status"] == "running"


@pytest.mark.parametrize(
    ("method", "suffix"), [("GET", ""), ("GET", "/result"), ("GET", "/events"), ("POST", "/cancel")]
)
def test_a_key_is_needed(quiet: Site, method: str, suffix: str) -> None:
    response = quiet.client.request(method, f"/jobs/{UNKNOWN}{suffix}")
    problem(response, 401, "missing-key")
    problem(quiet.client.get("/jobs"), 401, "missing-key")


def test_a_key_does_what_its_scopes_allow(quiet: Site, runner: LedgerRunner) -> None:
    reads, calls = (make_key(quiet, "scoped", scopes=[scope]) for scope in ("read", "call"))
    job_id = submit(quiet, Authorization=calls)

    assert quiet.get(f"/jobs/{job_id}", Authorization=reads).status_code == 200
    for path in ("/jobs", f"/jobs/{job_id}", f"/jobs/{job_id}/result", f"/jobs/{job_id}/events"):
        problem(quiet.get(path, Authorization=calls), 403, "forbidden")
    problem(cancel(quiet, job_id, Authorization=reads), 403, "forbidden")
    refused = quiet.call("echo", {"text": "a"}, Authorization=reads, Prefer="respond-async")
    problem(refused, 403, "forbidden")
    assert cancel(quiet, job_id, Authorization=calls).status_code == 200


# ---------------------------------------------------------------------- methods


@pytest.mark.parametrize(
    ("path", "allowed", "wrong"),
    [
        ("/jobs", "GET, HEAD, OPTIONS", "POST"),
        (f"/jobs/{UNKNOWN}", "GET, HEAD, OPTIONS", "DELETE"),
        (f"/jobs/{UNKNOWN}/result", "GET, HEAD, OPTIONS", "PUT"),
        (f"/jobs/{UNKNOWN}/events", "GET, HEAD, OPTIONS", "POST"),
        (f"/jobs/{UNKNOWN}/cancel", "OPTIONS, POST", "GET"),
    ],
)
def test_wrong_methods(quiet: Site, path: str, allowed: str, wrong: str) -> None:
    response = quiet.client.request(wrong, path, headers=quiet.headers())
    problem(response, 405, "method-not-allowed")
    assert response.headers["Allow"] == allowed


def test_head_is_get_without_the_content(quiet: Site, runner: LedgerRunner) -> None:
    job_id = finished(quiet, runner)
    for path in ("/jobs?limit=1", f"/jobs/{job_id}", f"/jobs/{job_id}/result"):
        got, head = quiet.get(path), quiet.client.head(path, headers=quiet.headers())
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["Content-Length"] == got.headers["Content-Length"] == str(len(got.content))
