"""Calls with `Prefer: respond-async`: what they are answered at once, and within their wait."""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest
import site_functions
from harness.ledger_runner import LedgerRunner
from harness.postgres import query
from harness.problem import problem
from harness.site import Site, eventually

from headrace import owners
from headrace.database import Database
from headrace.keys import create_key

BACKLOG = 20  # the site's


def claimed(runner: LedgerRunner, function: str) -> Any:
    """The job of the call that is under way."""
    return eventually(lambda: runner.claim(function), "a job waits")[0]


def moment(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


# ---------------------------------------------------------------------- 202


def test_a_call_becomes_a_job(quiet: Site, runner: LedgerRunner) -> None:
    response = quiet.call("echo", {"text": "a"}, Prefer="respond-async")
    job = response.json()
    runner.claim_one("echo")

    assert response.status_code == 202
    assert uuid.UUID(job["job_id"]).version == 7
    assert response.headers["Location"] == job["status_url"] == f"/jobs/{job['job_id']}"
    assert response.headers["Headrace-Job-Id"] == job["job_id"]
    assert response.headers["Preference-Applied"] == "respond-async"
    assert response.headers["Content-Type"] == "application/json"
    assert re.fullmatch("[2-5]", response.headers["Retry-After"])
    assert (job["status"], job["function"], job["attempt"]) == ("queued", "echo", 0)
    assert [job[name] for name in ("started_at", "finished_at", "progress", "error")] == [None] * 4
    assert moment(job["queue_deadline"]) - moment(job["created_at"]) == timedelta(seconds=60)
    assert moment(job["deadline"]) - moment(job["created_at"]) == timedelta(seconds=60 + 30 + 15)


def test_the_answer_is_what_asking_for_the_job_gets(quiet: Site, runner: LedgerRunner) -> None:
    response = quiet.call("echo", {"text": "a"}, Prefer="respond-async")

    assert quiet.get(response.headers["Location"]).content == response.content
    runner.claim_one("echo")


def test_the_ledger_has_what_was_sent(quiet: Site, runner: LedgerRunner) -> None:
    body = b' { "texts" : ["b\\u0000", "a"] } '
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    response = quiet.post(
        "/fn/count", body, Prefer="respond-async", X_Request_Id="order-1", traceparent=trace
    )
    job = runner.claim_one("count")

    assert job.job_id == response.json()["job_id"]
    assert (job.input, job.request_id, job.traceparent) == (body, "order-1", trace)
    ((digest, key_id),) = query(
        quiet.database_url, "SELECT digest, key_id::text FROM job WHERE id = %s", job.job_id
    )
    assert digest == hashlib.sha256(b'{"texts":["b\\u0000","a"]}').digest()
    assert query(quiet.database_url, "SELECT count(*) FROM api_key WHERE id = %s", key_id) == [(1,)]


@pytest.mark.parametrize(("given", "total"), [("5", 5), ("70", 70), ("1e6", 105)])
def test_a_deadline_only_shortens(quiet: Site, runner: LedgerRunner, given: str, total: float) -> None:
    job = quiet.call("echo", {"text": "a"}, Prefer="respond-async", Headrace_Deadline=given).json()
    runner.claim_one("echo")

    assert moment(job["deadline"]) - moment(job["created_at"]) == timedelta(seconds=total)
    assert moment(job["queue_deadline"]) - moment(job["created_at"]) == timedelta(seconds=min(total, 60))


def test_the_access_line_names_the_job(quiet: Site, runner: LedgerRunner) -> None:
    response = quiet.call("echo", {"text": "a"}, Prefer="respond-async")
    runner.claim_one("echo")

    (line,) = eventually(lambda: quiet.access_lines(response.headers["X-Request-Id"]), "the access line")
    assert (line["status"], line["job_id"]) == (202, response.json()["job_id"])
    assert (line["function"], line["bytes_in"]) == ("echo", 13)
    assert quiet.metric(quiet["gateway"], "headrace_calls_total", function="echo", status="202") >= 1


def test_many_at_once_go_in_few_transactions(quiet: Site, runner: LedgerRunner) -> None:
    gateway = quiet["gateway"]
    names = ("headrace_submits_total", "headrace_submitted_jobs_total")
    before = [quiet.metric(gateway, name) for name in names]
    prefer = {"Prefer": "respond-async"}
    with ThreadPoolExecutor(16) as threads:
        made = list(threads.map(lambda _: quiet.call("echo", {"text": "a"}, **prefer), range(16)))
    assert {response.status_code for response in made} == {202}

    submits, jobs = (quiet.metric(gateway, name) - one for name, one in zip(names, before, strict=True))
    assert jobs == 16
    assert 1 <= submits <= 16
    assert {job.job_id for job in runner.claim("echo", 99)} == {one.json()["job_id"] for one in made}


# ---------------------------------------------------------------------- waiting


def test_the_output_comes_within_the_wait(quiet: Site, runner: LedgerRunner) -> None:
    with asked(quiet, "respond-async, wait=20") as answer:
        job = claimed(runner, "echo")
        runner.end(job, output=b'{"text":"done"}', execution_s=1.5)
        response = answer()

    assert (response.status_code, response.content) == (200, b'{"text":"done"}')
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Headrace-Job-Id"] == job.job_id
    assert response.headers["Preference-Applied"] == "respond-async, wait=20"
    assert re.fullmatch(r"queue;dur=\d+\.\d{3}, exec;dur=1500\.000", response.headers["Server-Timing"])
    assert response.elapsed.total_seconds() < 10
    (line,) = eventually(lambda: quiet.access_lines(response.headers["X-Request-Id"]), "the access line")
    assert (line["status"], line["job_id"], line["attempt"], line["exec_ms"]) == (200, job.job_id, 1, 1500)


@pytest.mark.parametrize("seconds", [0, 1])
def test_after_the_wait_it_is_a_job_as_it_stands(quiet: Site, runner: LedgerRunner, seconds: int) -> None:
    response = quiet.call("echo", {"text": "a"}, Prefer=f"wait={seconds}, respond-async")
    runner.claim_one("echo")

    assert (response.status_code, response.json()["status"]) == (202, "queued")
    assert response.headers["Preference-Applied"] == f"respond-async, wait={seconds}"
    assert seconds <= response.elapsed.total_seconds() < seconds + 3


@pytest.mark.parametrize(
    ("category", "errors", "status"),
    [
        ("function-failed", (), 500),
        ("invalid-input", (("/phase", "not now"),), 422),
        ("attempts-exhausted", (), 500),
        ("hard-limit-exceeded", (), 504),
        ("worker-lost", (), 502),
    ],
)
def test_a_job_that_fails_within_the_wait(
    quiet: Site, runner: LedgerRunner, category: str, errors: tuple[tuple[str, str], ...], status: int
) -> None:
    with asked(quiet, "respond-async, wait=20") as answer:
        job = claimed(runner, "echo")
        runner.end(job, "failed", category=category, message="It is so.", errors=errors)
        response = answer()

    document = problem(response, status, category)
    assert (document["detail"], document["job_id"], document["attempt"]) == ("It is so.", job.job_id, 1)
    assert document.get("errors", []) == [{"path": path, "message": message} for path, message in errors]
    assert response.headers["Headrace-Job-Id"] == job.job_id


def test_a_category_that_is_no_code_is_not_told(quiet: Site, runner: LedgerRunner) -> None:
    with asked(quiet, "respond-async, wait=20") as answer:
        runner.end(claimed(runner, "echo"), "failed", category="of-tomorrow", message="It is so.")
        problem(answer(), 500, "function-failed")


def test_a_job_that_is_cancelled_within_the_wait(quiet: Site, runner: LedgerRunner) -> None:
    with asked(quiet, "respond-async, wait=20") as answer:
        job_id = eventually(lambda: quiet.get("/jobs?status=queued").json()["items"], "it waits")[0]["job_id"]
        assert quiet.post(f"/jobs/{job_id}/cancel", b"").status_code == 200
        problem(answer(), 409, "job-cancelled")


def test_a_job_that_nobody_starts_in_time(quiet: Site, runner: LedgerRunner) -> None:
    response = quiet.call("echo", {"text": "a"}, Prefer="respond-async, wait=20", Headrace_Deadline="0.3")

    problem(response, 504, "queue-deadline-exceeded")
    assert response.elapsed.total_seconds() < 5


def test_a_job_goes_on_without_its_client(quiet: Site, runner: LedgerRunner) -> None:
    request_id = str(uuid.uuid4())
    head = (
        f"POST /fn/echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {quiet.key}\r\n"
        f"X-Request-Id: {request_id}\r\nContent-Type: application/json\r\nContent-Length: 12\r\n"
        "Prefer: respond-async, wait=20\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", quiet.port), timeout=10) as connection:
        connection.sendall(head.encode() + b'{"text":"a"}')
        job = claimed(runner, "echo")

    (line,) = eventually(lambda: quiet.access_lines(request_id), "the access line")
    assert (line["status"], line["code"]) == (499, "client-left")
    assert runner.end(job) == "succeeded"
    assert quiet.job(job.job_id)["result"] == {"done": True}


# ---------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("function", "body", "headers", "status", "code"),
    [
        ("echo", b"{", {}, 400, "malformed-json"),
        ("echo", b'{"text": 1}', {}, 422, "invalid-input"),
        ("echo", b'{"text": "%b"}' % (b"x" * 2**14), {}, 413, "payload-too-large"),
        ("echo", b"{}", {"Content_Type": "text/plain"}, 415, "unsupported-media-type"),
        ("echo", b"{}", {"Accept": "text/html"}, 406, "not-acceptable"),
        ("echo", b"{}", {"Authorization": "Bearer hr_x"}, 401, "invalid-key"),
        ("echo", b"{}", {"Headrace_Deadline": "soon"}, 400, "malformed-header"),
        ("echo", b"{}", {"Prefer": "respond-async=yes"}, 400, "malformed-header"),
        ("echo", b"{}", {"Prefer": "respond-async, wait=-1"}, 400, "malformed-header"),
        ("echo", b'{"text": "a"}', {"Idempotency_Key": "not one"}, 400, "malformed-header"),
        ("echo", b'{"text": "a"}', {"Headrace_Priority": "urgent"}, 400, "malformed-header"),
        ("nobodys", b"{}", {}, 404, "unknown-function"),
    ],
)
def test_what_is_no_call_is_no_job(
    quiet: Site,
    runner: LedgerRunner,
    function: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    count = "SELECT count(*) FROM job"
    before = query(quiet.database_url, count)
    response = quiet.post(f"/fn/{function}", body, **{"Prefer": "respond-async", **headers})

    problem(response, status, code)
    assert query(quiet.database_url, count) == before


def test_an_owner_has_so_many_jobs_and_no_more(quiet: Site, runner: LedgerRunner) -> None:
    key = make_owner(quiet, "small", most_outstanding=2)
    headers = {"Authorization": f"Bearer {key}", "Prefer": "respond-async"}
    taken = [quiet.call("echo", {"text": "a"}, **headers) for _ in range(2)]
    refused = quiet.call("echo", {"text": "a"}, **headers)

    # The owner's rate stands before them: how much of it is left is a matter of time.
    left = [response.headers["RateLimit"].split(", ")[-1] for response in taken]
    assert left == ['"jobs";r=1', '"jobs";r=0']
    assert "2 unfinished jobs" in problem(refused, 429, "quota-exceeded")["detail"]
    assert refused.headers["RateLimit"].startswith('"jobs";r=0')
    assert refused.headers["RateLimit-Policy"].startswith('"jobs";q=2')
    assert quiet.call("echo", {"text": "a"}, Prefer="respond-async").status_code == 202
    jobs = runner.claim("echo", 3)
    assert quiet.call("echo", {"text": "a"}, **headers).status_code == 429  # it counts what runs too
    for job in jobs:
        runner.end(job)
    assert quiet.call("echo", {"text": "a"}, **headers).status_code == 202
    runner.claim_one("echo")


def test_a_lane_has_so_many_waiting_jobs_and_no_more(quiet: Site, runner: LedgerRunner) -> None:
    answers = [quiet.call("halve", {"number": 2}, Prefer="respond-async") for _ in range(BACKLOG + 1)]

    assert [response.status_code for response in answers] == [202] * BACKLOG + [503]
    problem(answers[-1], 503, "backlog-full")
    assert quiet.call("echo", {"text": "a"}, Prefer="respond-async").status_code == 202
    assert len(runner.claim("halve", 2 * BACKLOG)) == BACKLOG
    runner.claim_one("echo")
    assert quiet.call("halve", {"number": 2}, Prefer="respond-async").status_code == 202
    runner.claim_one("halve")


def test_a_job_is_taken_while_a_runner_may_come_back(quiet: Site) -> None:
    runner = LedgerRunner(quiet.database_url, [site_functions.talks.manifest])
    runner.register()
    eventually(lambda: quiet.get("/fn/talks").status_code == 200, "the function is served")
    problem(quiet.call("talks", {"characters": 1}), 503, "no-runner")  # a call can't wait for one
    runner.leave()
    response = quiet.call("talks", {"characters": 1}, Prefer="respond-async")
    assert response.status_code == 202
    runner.claim_one("talks")

    query(
        quiet.database_url,
        "UPDATE runner SET seen_at = seen_at - interval '1 hour', left_at = left_at - interval '1 hour'"
        " WHERE id = %s",
        runner.runner_id,
    )
    query(quiet.database_url, "SELECT pg_notify('headrace_registry', 'runners')")

    def refused() -> httpx2.Response | None:
        answer = quiet.call("talks", {"characters": 1}, Prefer="respond-async")
        return answer if answer.status_code == 503 else None

    assert "queue budget" in problem(eventually(refused, "it is too long ago"), 503, "no-runner")["detail"]


# ---------------------------------------------------------------------- tools


class asked:  # noqa: N801 - reads as a word in a test
    """A call of `echo` that waits for its job, in a thread; gives a way to its answer."""

    def __init__(self, site: Site, prefer: str) -> None:
        self._threads = ThreadPoolExecutor(1)
        self._answer = self._threads.submit(site.call, "echo", {"text": "a"}, Prefer=prefer)

    def __enter__(self) -> Any:
        return lambda: self._answer.result(30)

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()


def make_owner(site: Site, name: str, **quota: Any) -> str:
    async def make() -> str:
        async with await Database.open(site.database_url, application_name="test") as database:
            await owners.create_owner(database, name, **quota)
            return await create_key(database, name)

    return asyncio.run(make())
