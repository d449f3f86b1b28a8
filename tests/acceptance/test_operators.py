"""Jobs that are done again, dead letters, and what operators do to many jobs: over HTTP and by commands."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import msgspec
import pytest
import site_functions
from harness.ledger_runner import LedgerRunner
from harness.postgres import Clones, query
from harness.problem import problem
from harness.site import Site, eventually, site

from headrace import registry
from headrace.client import CallRefused, Client
from headrace.database import Database
from headrace.keys import create_key
from headrace.owners import set_quota

ECHO = site_functions.echo.manifest
TWIN = msgspec.structs.replace(ECHO, name="twin")
"""Of the same inputs and outputs as `echo`."""


@pytest.fixture(scope="module")
def quiet(clones: Clones) -> Iterator[Site]:
    """A site whose only runner is the test."""
    with clones.migrated() as url, site(url, runners=0) as running:
        yield running


@pytest.fixture
def runner(quiet: Site) -> LedgerRunner:
    made = LedgerRunner(quiet.database_url, [ECHO, TWIN, site_functions.halve.manifest])
    made.register()
    eventually(lambda: quiet.get("/fn/twin").status_code == 200, "the functions are served")
    return made


def newcomer() -> str:
    """The name of an owner that nobody had before, not even this test when it ran the last time."""
    return f"owner-{uuid.uuid4().hex[:8]}"


def bearer(quiet: Site, owner: str, **key: Any) -> dict[str, str]:
    """The header of a new key."""

    async def make() -> str:
        async with await Database.open(quiet.database_url, application_name="test") as database:
            return await create_key(database, owner, **key)

    return {"Authorization": f"Bearer {asyncio.run(make())}"}


def submit(quiet: Site, name: str = "echo", **headers: str) -> str:
    return quiet.submit(name, {"text": "a"}, **headers)


def failed(quiet: Site, runner: LedgerRunner, **headers: str) -> str:
    """A job that ended so."""
    job_id = submit(quiet, **headers)
    runner.end(runner.claim_one("echo"), "failed", category="function-failed", message="It broke.")
    return job_id


def retry(quiet: Site, job_id: str, **headers: str) -> httpx2.Response:
    return quiet.post(f"/jobs/{job_id}/retry", b"", **headers)


def dead(quiet: Site, **headers: str) -> list[str]:
    return [job["job_id"] for job in quiet.get("/jobs?dead=true", **headers).json()["items"]]


def headrace(quiet: Site, *arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    """A command on the site's database."""
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        env={**quiet.environment(), "LOGNAME": "gauss"},
        cwd=quiet.folder,
        input=answer,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def audited(quiet: Site, *options: str) -> list[dict[str, Any]]:
    done = headrace(quiet, "audit", "--json", *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---------------------------------------------------------------------- retry


def test_a_failed_job_is_done_again_by_a_new_one(quiet: Site, runner: LedgerRunner) -> None:
    old = failed(quiet, runner)
    answer = retry(quiet, old, X_Request_Id="again-1")
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert (job["status"], job["function"], job["retry_of"], job["attempt"]) == ("queued", "echo", old, 0)
    assert answer.headers["Location"] == job["status_url"] == f"/jobs/{job['job_id']}"
    assert answer.headers["Headrace-Job-Id"] == job["job_id"] != old
    assert 2 <= int(answer.headers["Retry-After"]) <= 5
    assert answer.headers["RateLimit-Policy"].startswith('"jobs";q=')
    assert "Idempotent-Replayed" not in answer.headers
    assert "retried_as" not in job
    assert quiet.job(old)["retried_as"] == job["job_id"]
    assert job == quiet.job(job["job_id"])

    claimed = runner.claim_one("echo")
    assert (claimed.input, claimed.request_id) == (b'{"text": "a"}', "again-1")
    runner.end(claimed)
    repeated = retry(quiet, old)
    assert (repeated.status_code, repeated.headers["Idempotent-Replayed"]) == (202, "true")
    assert (repeated.json()["job_id"], repeated.json()["status"]) == (job["job_id"], "succeeded")
    assert audited(quiet, "--action", "job.retry", "--subject", old)[0]["detail"] == {"job_id": job["job_id"]}


def test_retries_at_the_same_time_are_one(quiet: Site, runner: LedgerRunner) -> None:
    old = failed(quiet, runner)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: retry(quiet, old), range(8)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["job_id"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" in answer.headers for answer in answers) == 7
    runner.end(runner.claim_one("echo"))


def test_what_may_succeed_or_has_is_not_retried(quiet: Site, runner: LedgerRunner) -> None:
    job_id = submit(quiet)
    assert problem(retry(quiet, job_id), 409, "not-retryable")["detail"].startswith("The job still waits")
    claimed = runner.claim_one("echo")
    assert problem(retry(quiet, job_id), 409, "not-retryable")["detail"] == "The job still runs."
    runner.end(claimed)
    assert problem(retry(quiet, job_id), 409, "not-retryable")["detail"] == "The job has succeeded."
    cancelled = submit(quiet)
    quiet.post(f"/jobs/{cancelled}/cancel", b"")
    again = retry(quiet, cancelled)
    assert again.status_code == 202
    quiet.post(f"{again.headers['Location']}/cancel", b"")


def test_only_who_may_call_the_function_and_owns_the_job_retries_it(
    quiet: Site, runner: LedgerRunner
) -> None:
    old = failed(quiet, runner)
    problem(retry(quiet, old, **bearer(quiet, "somebody")), 404, "unknown-job")
    problem(retry(quiet, "nonsense"), 404, "unknown-job")
    problem(retry(quiet, "01900000-0000-7000-8000-000000000000"), 404, "unknown-job")
    problem(retry(quiet, old, **bearer(quiet, "tester", scopes=["read"])), 403, "forbidden")
    problem(retry(quiet, old, **bearer(quiet, "tester", functions=["halve"])), 403, "forbidden")
    assert "retried_as" not in quiet.job(old)


def test_a_retry_is_held_to_quotas_and_needs_a_runner(quiet: Site, runner: LedgerRunner) -> None:
    owner = newcomer()
    headers = bearer(quiet, owner)

    async def limit(**quota: Any) -> None:
        async with await Database.open(quiet.database_url, application_name="test") as database:
            await set_quota(database, owner, **quota)

    old = failed(quiet, runner, **headers)
    waiting = submit(quiet, **headers)
    asyncio.run(limit(most_outstanding=1, rate=100))
    eventually(lambda: "RateLimit" in retry(quiet, old, **headers).headers, "the quota holds")
    refused = retry(quiet, old, **headers)
    assert problem(refused, 429, "quota-exceeded")["violated-policies"] == ["jobs"]
    assert re.fullmatch('"jobs";r=0;t=[2-5], "rate";r=[0-9]+;t=1', refused.headers["RateLimit"])
    quiet.post(f"/jobs/{waiting}/cancel", b"", **headers)
    asyncio.run(limit(most_outstanding=None, rate=0.01))
    eventually(lambda: quiet.call("twin", {}, **headers).status_code == 429, "the new rate holds")
    refused = retry(quiet, old, **headers)
    assert problem(refused, 429, "quota-exceeded")["violated-policies"] == ["rate"]
    asyncio.run(limit(rate=100))

    async def change_interface() -> None:
        async with await Database.open(quiet.database_url, application_name="test") as database:
            changed = msgspec.structs.replace(TWIN, name="echo", interface="f" * 32)
            await registry.retire(database, "echo")
            query(quiet.database_url, "UPDATE job SET interface = %s WHERE id = %s", changed.interface, old)

    asyncio.run(change_interface())
    eventually(lambda: retry(quiet, old, **headers).status_code == 410, "the function is retired")
    runner.register()
    eventually(lambda: quiet.get("/fn/echo").status_code == 200, "it is back")
    refused = retry(quiet, old, **headers)
    assert "takes the input" in problem(refused, 503, "no-runner")["detail"]
    assert refused.headers["RateLimit"].startswith('"rate";r=')
    query(quiet.database_url, "UPDATE job SET interface = %s WHERE id = %s", ECHO.interface, old)
    assert retry(quiet, old, **headers).status_code == 202
    runner.end(runner.claim_one("echo"))


def test_a_retry_is_of_no_higher_class_than_its_owner_may_ask_for(quiet: Site, runner: LedgerRunner) -> None:
    owner = newcomer()
    headers = bearer(quiet, owner)
    first, second = (failed(quiet, runner, **headers, Headrace_Priority=name) for name in ("high", "low"))
    query(quiet.database_url, "UPDATE owner SET highest_priority = 'normal' WHERE name = %s", owner)
    query(quiet.database_url, "SELECT pg_notify('headrace_keys', '')")
    refused = lambda: quiet.call("echo", {"text": "a"}, **headers, Headrace_Priority="high")  # noqa: E731
    eventually(lambda: refused().status_code == 403, "it is lowered")
    for old, weight in ((first, 1.0), (second, 0.25)):
        new = retry(quiet, old, **headers).json()["job_id"]
        assert query(quiet.database_url, "SELECT weight FROM job WHERE id = %s", new) == [(weight,)]
        quiet.post(f"/jobs/{new}/cancel", b"", **headers)


# ---------------------------------------------------------------------- dead letters


def test_dead_letters_are_listed_until_they_are_retried(quiet: Site, runner: LedgerRunner) -> None:
    headers = bearer(quiet, newcomer())
    first, second = (failed(quiet, runner, **headers) for _ in range(2))
    runner_ends = submit(quiet, **headers)
    runner.end(runner.claim_one("echo"))
    assert dead(quiet, **headers) == [second, first]
    page = quiet.get("/jobs?dead=true&limit=1", **headers)
    assert "dead=true" in page.headers["Link"]
    retry(quiet, second, **headers)
    assert dead(quiet, **headers) == [first]
    named = quiet.get("/jobs?category=function-failed", **headers).json()["items"]
    assert [job["job_id"] for job in named] == [second, first]
    assert runner_ends not in dead(quiet, **headers)
    for wrong in ("dead=yes", "dead=false", "category=nonsense"):
        problem(quiet.get(f"/jobs?{wrong}", **headers), 400, "bad-request")
    runner.end(runner.claim_one("echo"))


def test_the_client_retries_and_lists(quiet: Site, runner: LedgerRunner) -> None:
    old = failed(quiet, runner)
    with Client(quiet.url, quiet.key) as client:
        assert client.jobs(dead=True, category="function-failed", limit=1).items[0]["job_id"] == old
        new = client.retry(old)
        assert new["retry_of"] == old
        assert client.retry(old)["job_id"] == new["job_id"]
        with pytest.raises(CallRefused) as refusal:
            client.retry(new["job_id"])
        assert refusal.value.code == "not-retryable"
    runner.end(runner.claim_one("echo"))


# ---------------------------------------------------------------------- commands of operators


def test_operators_cancel_retry_and_move_many_jobs(quiet: Site, runner: LedgerRunner) -> None:
    owner = newcomer()
    headers = bearer(quiet, owner)
    first = [submit(quiet, **headers) for _ in range(3)]
    mine = ("--owner", owner)
    unsure = headrace(quiet, "ops", "cancel", *mine, answer="n\n")
    assert unsure.returncode == 1
    assert unsure.stderr.endswith("headrace: nothing was done\n")
    assert "3 jobs match\nCancel 3 jobs? [y/N]:" in unsure.stderr
    done = headrace(quiet, "ops", "cancel", *mine, "--limit", "2", answer="y\n")
    assert (done.returncode, done.stdout) == (0, "cancelled 2 jobs\n")
    assert [quiet.get(f"/jobs/{job_id}", **headers).json()["status"] for job_id in first] == [
        "cancelled", "cancelled", "queued"
    ]  # fmt: skip

    runner.end(runner.claim_one("echo"), "failed", category="function-failed", message="It\nbroke.")
    listed = headrace(quiet, "ops", "dead", *mine)
    assert [line.split() for line in listed.stdout.splitlines()][1][:5] == [
        first[2], owner, "echo", "failed", "function-failed"
    ]  # fmt: skip
    assert r"It\nbroke." in listed.stdout
    assert (
        headrace(quiet, "ops", "retry", *mine, "--status", "cancelled", "--yes").stdout == "retried 2 jobs\n"
    )
    assert headrace(quiet, "ops", "retry", *mine, "--yes").stdout == "retried 1 job\n"

    refused = headrace(quiet, "ops", "move", "--function", "echo", "--to", "halve", "--yes")
    assert "don't have the same inputs and outputs" in refused.stderr
    moved = headrace(quiet, "ops", "move", "--function", "echo", "--to", "twin", *mine, "--yes")
    assert (moved.stdout, moved.returncode) == ("moved 3 jobs\n", 0)
    claimed = runner.claim("twin", 5)
    assert len(claimed) == 3
    for job in claimed:
        assert runner.end(job) == "succeeded"
        assert quiet.get(f"/jobs/{job.job_id}", **headers).json()["function"] == "twin"
    reasons = "SELECT actor, reason FROM job_event WHERE job_id = %s AND from_state = state"
    assert query(quiet.database_url, reasons, claimed[0].job_id) == [
        ("operator:gauss", "moved from lane echo to twin")
    ]

    changes = [entry for entry in audited(quiet) if entry["detail"].get("filter", {}).get("owner") == owner]
    assert {entry["actor"] for entry in changes} == {"operator:gauss"}
    told = [
        (entry["action"], entry["detail"]["changed"])
        for entry in changes
        if entry["detail"]["stage"] == "ended"
    ]
    assert told == [("jobs.move", 3), ("jobs.retry", 1), ("jobs.retry", 2), ("jobs.cancel", 2)]
    assert changes[1]["detail"] == {
        "stage": "begun", "filter": {"function": "echo", "owner": owner}, "to": "twin", "matching": 3
    }  # fmt: skip


def test_operators_bound_a_function(quiet: Site, runner: LedgerRunner) -> None:
    done = headrace(quiet, "functions", "limit", "halve", "--waiting", "1", "--age", "10m")
    assert (done.returncode, done.stdout) == (0, "halve: waiting 1, cost none, age 600s\n")
    quiet.submit("halve", {"number": 2})
    problem(quiet.call("halve", {"number": 2}, Prefer="respond-async"), 503, "backlog-full")
    (line,) = [line for line in headrace(quiet, "status").stdout.splitlines() if line.startswith("halve")]
    assert line.split()[-1] == "waiting=1,age=600"
    assert headrace(quiet, "functions", "limit", "halve", "--waiting", "none").returncode == 0
    quiet.submit("halve", {"number": 2})
    refused = headrace(quiet, "functions", "limit", "nobody", "--cost", "1")
    assert (refused.returncode, "there is no function 'nobody'" in refused.stderr) == (1, True)
    unknown = headrace(quiet, "ops", "dead", "--function", "nobody")
    assert unknown.stderr == "headrace: there is no function 'nobody': see `headrace functions`\n"
    unknown = headrace(quiet, "audit", "--action", "function.bogus")
    assert unknown.stderr.startswith("headrace: there is no action 'function.bogus': there are key.create, ")
    (entry, _) = audited(quiet, "--action", "function.limit")
    assert entry["detail"] == {"most_waiting": None}


def test_the_audit_is_a_table_for_people(quiet: Site) -> None:
    assert headrace(quiet, "owners", "set", "tester", "--highest-priority", "normal").returncode == 0
    shown = headrace(quiet, "audit", "--subject", "tester", "--limit", "1")
    head, line = shown.stdout.splitlines()
    assert head.split() == ["AT", "WHO", "ACTION", "SUBJECT", "DETAIL"]
    assert line.endswith('operator:gauss  owner.set  tester   {"highest_priority": "normal"}')
    owners = headrace(quiet, "owners").stdout.splitlines()
    assert any(line.startswith("tester") and " normal " in line for line in owners)
    headrace(quiet, "owners", "set", "tester", "--highest-priority", "high")
