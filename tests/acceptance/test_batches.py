"""Batches over HTTP: accepted whole, followed, read in order, cancelled, and seen by their owner alone."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2
import psycopg
import pytest
from harness.ledger_runner import LedgerRunner
from harness.postgres import query, terminate
from harness.problem import problem
from harness.site import Site, eventually

from headrace.client import CallRefused, Client
from headrace.database import Database
from headrace.keys import create_key

UNKNOWN = "01900000-0000-7000-8000-000000000000"


def post(site: Site, inputs: Sequence[Any], name: str = "echo", **headers: str) -> httpx2.Response:
    return site.post(f"/fn/{name}/batch", json.dumps(inputs).encode(), **headers)


def submit(site: Site, count: int, **headers: str) -> str:
    response = post(site, [{"text": str(n)} for n in range(count)], **headers)
    assert response.status_code == 202, response.text
    return response.json()["batch_id"]


def cancel(site: Site, batch_id: str, **headers: str) -> httpx2.Response:
    return site.post(f"/batches/{batch_id}/cancel", b"", **headers)


def results(site: Site, batch_id: str, query: str = "") -> list[dict[str, Any]]:
    response = site.get(f"/batches/{batch_id}/results{query}")
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.content.split(b"\n") if line]


def make_key(site: Site, owner: str, **options: Any) -> str:
    async def make() -> str:
        async with await Database.open(site.database_url, application_name="test") as database:
            return await create_key(database, owner, **options)

    return f"Bearer {asyncio.run(make())}"


def end(runner: LedgerRunner, claimed: Sequence[Any], *kinds: str) -> None:
    for job, kind in zip(claimed, kinds, strict=True):
        more = {} if kind == "succeeded" else {"category": "function-failed", "message": "It burnt."}
        runner.end(job, kind, **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- executed


def test_inputs_are_answered_in_their_order(served: Site) -> None:
    accepted = post(served, [{"text": str(n), "top_k": n} for n in range(300)])
    assert accepted.status_code == 202
    batch = accepted.json()
    url = f"/batches/{batch['batch_id']}"
    assert accepted.headers["Location"] == batch["batch_url"] == url
    assert accepted.headers["Headrace-Batch-Id"] == batch["batch_id"]
    assert re.fullmatch("[2-5]", accepted.headers["Retry-After"])
    assert (batch["function"], batch["size"], batch["results_url"]) == ("echo", 300, f"{url}/results")
    assert (batch["status"], batch["counts"]["queued"]) == ("running", 300)
    assert served.metric(served["gateway"], "headrace_batch_jobs_total") >= 300

    with Client(served.url, served.key) as client:
        finished = client.batch_status(batch["batch_id"], wait=30)
        assert finished["status"] == "finished"
        assert {state: count for state, count in finished["counts"].items() if count} == {"succeeded": 300}
        found = list(client.batch_results(batch["batch_id"]))
        assert [(one["index"], one["result"]["n"]) for one in found] == [(n, n) for n in range(300)]
        assert list(client.batch_results(batch["batch_id"], after=297)) == found[298:]
    job = served.job(found[17]["job_id"])
    assert (job["batch_id"], job["batch_index"]) == (batch["batch_id"], 17)
    listed = served.get(f"/jobs?batch={batch['batch_id']}&limit=2").json()["items"]
    assert [one["batch_index"] for one in listed] == [299, 298]
    assert cancel(served, batch["batch_id"]).status_code == 200


def test_ten_thousand_inputs_are_accepted_and_cancelled(served: Site) -> None:
    with Client(served.url, served.key) as client:
        batch = client.batch("nap", ({"seconds": 4} for _ in range(10_000)))
        assert (batch["size"], batch["counts"]["queued"]) == (10_000, 10_000)
        cancelled = client.cancel_batch(batch["batch_id"])
        assert cancelled["counts"]["queued"] == 0
        finished = client.batch_status(batch["batch_id"], wait=30)
        assert (finished["status"], finished["counts"]["cancelled"]) == ("finished", 10_000)
        with pytest.raises(CallRefused) as caught:
            client.batch("nap", ({"seconds": 0} for _ in range(10_001)))
        assert caught.value.status == 422
        assert client.batch_status(batch["batch_id"])["size"] == 10_000  # over another connection


# ---------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("body", "status", "code", "said"),
    [
        (b'[{"text": "a"}, {"text": 1}, {}]', 422, "invalid-input", "2 inputs are not valid, of 3"),
        (b"[]", 422, "invalid-input", "at least one"),
        (b'{"text": "a"}', 422, "invalid-input", "a JSON array"),
        (b'[{"text": "a"}', 400, "malformed-json", "inside an array"),
        (b'[{"text": "a"}, {"text": "b" "c"}]', 400, "malformed-json", "Item 1"),
        (b'[{"text": "%b"}]' % (b"a" * 2**14), 413, "payload-too-large", "Item 0"),
    ],
)
def test_nothing_is_recorded_of_a_batch_that_cannot_be_taken(
    quiet: Site, runner: LedgerRunner, body: bytes, status: int, code: str, said: str
) -> None:
    key = make_key(quiet, "refused")
    document = problem(quiet.post("/fn/echo/batch", body, Authorization=key), status, code)
    assert said in document["detail"]
    if said.startswith("2"):
        assert [error["path"] for error in document["errors"]] == ["/1/text", "/2/text"]
    assert quiet.get("/batches", Authorization=key).json() == {"items": [], "next": None}
    assert quiet.get("/jobs", Authorization=key).json()["items"] == []


def test_what_else_a_batch_is_refused_for(quiet: Site, runner: LedgerRunner) -> None:
    one = [{"text": "a"}]
    problem(post(quiet, one, Content_Type="text/csv"), 415, "unsupported-media-type")
    problem(post(quiet, one, Accept="text/html"), 406, "not-acceptable")
    problem(post(quiet, one, Headrace_Deadline="x"), 400, "malformed-header")
    problem(post(quiet, one, Content_Encoding="gzip"), 415, "unsupported-media-type")
    problem(post(quiet, one, "nobodys"), 404, "unknown-function")
    problem(quiet.client.post("/fn/echo/batch", json=one), 401, "missing-key")
    bound = make_key(quiet, "bound", functions=["nap"])
    problem(post(quiet, one, Authorization=bound), 403, "forbidden")
    problem(post(quiet, one, Authorization=make_key(quiet, "bound", scopes=["read"])), 403, "forbidden")
    assert problem(quiet.get("/fn/echo/batch"), 405, "method-not-allowed")


def test_slow_uploads_keep_nobody_else_waiting(quiet: Site, runner: LedgerRunner) -> None:
    keys = [make_key(quiet, name) for name in ("slow", "slower")]
    url = httpx2.URL(quiet.url)
    with ExitStack() as opened:
        for key in keys * 2:
            connection = opened.enter_context(socket.create_connection((url.host, url.port), timeout=20))
            connection.sendall(
                f"POST /fn/echo/batch HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: {key}\r\n"
                "Content-Type: application/x-ndjson\r\nContent-Length: 99\r\n"
                "Expect: 100-continue\r\n\r\n".encode()
            )
            assert b" 100 " in connection.recv(2**16)  # it has a place, and sends nothing
        for key in (make_key(quiet, "fast"), keys[0]):
            batch_id = submit(quiet, 2, Authorization=key)
            cancel(quiet, batch_id, Authorization=key)


# ---------------------------------------------------------------------- followed


def test_results_before_the_end(quiet: Site, runner: LedgerRunner) -> None:
    batch_id = submit(quiet, 4)
    end(runner, runner.claim("echo", 2), "succeeded", "failed")
    early = quiet.get(f"/batches/{batch_id}/results")
    problem(early, 409, "not-finished")
    assert re.fullmatch("[2-5]", early.headers["Retry-After"])
    partial = results(quiet, batch_id, "?partial=true")
    assert [(one["index"], one["status"]) for one in partial] == [
        (0, "succeeded"),
        (1, "failed"),
        (2, "queued"),
        (3, "queued"),
    ]
    assert (partial[0]["result"], partial[1]["error"]["message"]) == ({"done": True}, "It burnt.")
    assert partial[2].keys() == {"index", "job_id", "status"}

    batch = quiet.get(f"/batches/{batch_id}").json()
    assert (batch["counts"]["succeeded"], batch["counts"]["failed"], batch["counts"]["queued"]) == (1, 1, 2)
    asked = cancel(quiet, batch_id)
    assert (asked.status_code, asked.json()["status"]) == (200, "finished")
    assert results(quiet, batch_id)[3]["error"]["category"] == "job-cancelled"


def test_a_running_job_keeps_a_cancelled_batch_running(quiet: Site, runner: LedgerRunner) -> None:
    batch_id = submit(quiet, 3)
    job = runner.claim_one("echo")
    for _ in range(2):
        asked = cancel(quiet, batch_id)
        assert (asked.status_code, asked.json()["counts"]["cancel_requested"]) == (202, 1)
        assert asked.headers["Location"] == f"/batches/{batch_id}"
    assert runner.end(job) == "cancelled"
    assert cancel(quiet, batch_id).json()["counts"]["cancelled"] == 3
    audited = query(
        quiet.database_url, "SELECT action, detail FROM audit WHERE subject = %s ORDER BY id", batch_id
    )
    assert audited == [("batch.cancel", {"jobs": 3})]


def test_waiting_for_a_batch_ends_with_it(quiet: Site, runner: LedgerRunner) -> None:
    batch_id = submit(quiet, 2)
    claimed = runner.claim("echo", 2)
    assert quiet.get(f"/batches/{batch_id}", Prefer="wait=1").json()["status"] == "running"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(quiet.get, f"/batches/{batch_id}", Prefer="wait=25")
        end(runner, claimed, "succeeded", "succeeded")
        answer = waiting.result(30)
    assert (answer.json()["status"], answer.headers["Preference-Applied"]) == ("finished", "wait=25")
    assert "Retry-After" not in answer.headers
    assert answer.elapsed.total_seconds() < 15


def test_results_of_any_size_are_read_page_by_page(quiet: Site, runner: LedgerRunner) -> None:
    large = json.dumps(["x" * 1000] * 2500).encode()  # three pieces
    outputs = [b'"a"', large, b'"b"', b'"%b"' % (b"y" * 2**16), b'"\xe2\x80\xa8"']
    batch_id = submit(quiet, len(outputs))
    for job, output in zip(runner.claim("echo", len(outputs)), outputs, strict=True):
        runner.end(job, output=output)

    found = results(quiet, batch_id)
    assert [one["result"] for one in found] == [json.loads(output) for output in outputs]
    assert results(quiet, batch_id, "?after=1&limit=2") == found[2:4]
    path, pages = f"/batches/{batch_id}/results?limit=2", list[list[str]]()
    while path:
        response = quiet.get(path)
        pages.append(response.text.strip().split("\n"))
        match = re.fullmatch('<(.*)>; rel="next"', response.headers.get("Link", ""))
        path = match[1] if match else ""
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [json.loads(line) for page in pages for line in page] == found
    head = quiet.client.head(f"/batches/{batch_id}/results", headers=quiet.headers())
    assert (head.status_code, head.content) == (200, b"")

    query(
        quiet.database_url,
        "UPDATE job SET result_expires_at = '2020-02-02T20:20:20Z' WHERE batch_id = %s AND batch_index < 2",
        batch_id,
    )
    for one in results(quiet, batch_id)[:2]:
        assert (one["status"], one["error"]["category"]) == ("succeeded", "result-expired")
        assert "2020-02-02T20:20:20.000Z" in one["error"]["message"]


@pytest.mark.parametrize(
    "wrong", ["after=-1", "limit=0", "limit=10001", "partial=yes", "page=1", "after=1&after=1"]
)
def test_results_cannot_be_asked_for_so(quiet: Site, runner: LedgerRunner, wrong: str) -> None:
    problem(quiet.get(f"/batches/{UNKNOWN}/results?{wrong}"), 400, "bad-request")


def test_lists_are_read_page_by_page(quiet: Site, runner: LedgerRunner) -> None:
    headers = {"Authorization": make_key(quiet, "reader of batches")}
    made = [submit(quiet, 1, **headers) for _ in range(3)]
    cancel(quiet, made[1], **headers)
    first = quiet.get("/batches?limit=2", **headers)
    assert [(one["batch_id"], one["status"]) for one in first.json()["items"]] == [
        (made[2], "running"),
        (made[1], "finished"),
    ]
    match = re.fullmatch('<(.*)>; rel="next"', first.headers["Link"])
    assert match is not None
    last = quiet.get(match[1], **headers)
    assert [one["batch_id"] for one in last.json()["items"]] == [made[0]]
    assert (last.json()["next"], "Link" in last.headers) == (None, False)
    for batch_id in made:
        cancel(quiet, batch_id, **headers)


# ---------------------------------------------------------------------- once


def test_a_key_stands_for_its_batch(quiet: Site, runner: LedgerRunner) -> None:
    key, inputs = f'"{uuid.uuid4()}"', [{"text": "a"}, {"text": "b"}]
    with ThreadPoolExecutor(4) as threads:
        sent: Callable[[int], httpx2.Response] = lambda _: post(quiet, inputs, Idempotency_Key=key)  # noqa: E731
        answers = list(threads.map(sent, range(4)))
    assert {answer.status_code for answer in answers} == {202}
    (batch_id,) = {answer.json()["batch_id"] for answer in answers}
    again = quiet.post(
        "/fn/echo/batch",
        b'{"text":"a"}\n{"text":"b"}',
        Idempotency_Key=key,
        Content_Type="application/x-ndjson",
    )
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (202, "true")
    assert again.json()["batch_id"] == batch_id
    conflict = post(quiet, inputs[::-1], Idempotency_Key=key)
    assert problem(conflict, 422, "key-conflict")["batch_id"] == batch_id
    assert query(quiet.database_url, "SELECT count(*) FROM job WHERE batch_id = %s", batch_id) == [(2,)]
    cancel(quiet, batch_id)


def test_a_lost_connection_does_not_lose_a_batch(quiet: Site, runner: LedgerRunner) -> None:
    key = make_key(quiet, "persistent")
    turn = "SELECT pg_advisory_xact_lock(hashtextextended('headrace.batch.' || id, 0)) FROM owner"
    turn += " WHERE name = %s"
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    blocked += " AND application_name = 'headrace-gateway-batch' AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as threads, psycopg.connect(quiet.database_url) as other:
        other.execute(turn, ("persistent",))
        recording = threads.submit(submit, quiet, 3, Authorization=key)
        for _ in range(2):
            eventually(lambda: query(quiet.database_url, blocked) == [(1,)], "it waits")  # type: ignore[arg-type]
            terminate(quiet.database_url, "headrace-gateway-batch")
        other.rollback()
        batch_id = recording.result(30)
    assert quiet.get(f"/batches/{batch_id}", Authorization=key).json()["counts"]["queued"] == 3
    cancel(quiet, batch_id, Authorization=key)


def test_deadlines_and_priorities_are_those_of_each_job(quiet: Site, runner: LedgerRunner) -> None:
    batch_id = submit(quiet, 2, Headrace_Priority="high", Headrace_Deadline="100")
    usual = submit(quiet, 1)
    kept = "SELECT DISTINCT weight, extract(epoch FROM queue_deadline_at - created_at)::integer,"
    kept += " extract(epoch FROM deadline_at - created_at)::integer FROM job WHERE batch_id = %s"
    assert query(quiet.database_url, kept, batch_id) == [(4.0, 100, 100)]  # type: ignore[arg-type]
    assert query(quiet.database_url, kept, usual) == [(1.0, 86_400, 86_445)]  # type: ignore[arg-type]
    for one in (batch_id, usual):
        cancel(quiet, one)


# ---------------------------------------------------------------------- whose


def test_what_is_not_mine_is_not_there(quiet: Site, runner: LedgerRunner) -> None:
    batch_id = submit(quiet, 1)
    stranger = make_key(quiet, "stranger")
    for method, suffix in (("GET", ""), ("GET", "/results"), ("POST", "/cancel"), ("HEAD", "")):
        answers = [
            quiet.client.request(
                method,
                f"/batches/{name}{suffix}",
                headers=quiet.headers(X_Request_Id="same", **headers),
            )
            for name, headers in (
                (batch_id, {"Authorization": stranger}),
                (UNKNOWN, {}),
                (UNKNOWN, {"Authorization": stranger}),
                ("x", {}),
                (batch_id.upper(), {}),
            )
        ]
        if method != "HEAD":
            problem(answers[0], 404, "unknown-batch")
        assert {answer.status_code for answer in answers} == {404}
        assert len({answer.content for answer in answers}) == 1
    assert quiet.get("/batches", Authorization=stranger).json()["items"] == []
    assert quiet.get(f"/jobs?batch={batch_id}", Authorization=stranger).json()["items"] == []
    assert quiet.get(f"/batches/{batch_id}").json()["counts"]["queued"] == 1
    reads, calls = (make_key(quiet, "tester", scopes=[scope]) for scope in ("read", "call"))
    problem(cancel(quiet, batch_id, Authorization=reads), 403, "forbidden")
    for path in ("/batches", f"/batches/{batch_id}", f"/batches/{batch_id}/results"):
        problem(quiet.get(path, Authorization=calls), 403, "forbidden")
    assert cancel(quiet, batch_id, Authorization=calls).status_code == 200
