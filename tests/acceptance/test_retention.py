"""What a client sees of a job once its result, and then the job itself, was kept long enough."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from harness.event_stream import reading
from harness.ledger_runner import LedgerRunner
from harness.postgres import Clones, query
from harness.problem import problem
from harness.site import Site, eventually, site

from headrace.database import Database
from headrace.ledger import retention
from headrace.maintenance.pruning import Pruning

JOB_TTL_S = 2.0
# As when a job ends and is pruned while nobody could be told of it.
PRUNE_AT_ONCE = (
    "WITH gone AS (DELETE FROM job WHERE id = %s::uuid RETURNING id, entry_id),"
    " events AS (DELETE FROM job_event WHERE job_id IN (SELECT id FROM gone))"
    " DELETE FROM procrastinate_jobs WHERE id IN (SELECT entry_id FROM gone)"
)


@pytest.fixture(scope="module")
def forgetful(clones: Clones) -> Iterator[Site]:
    """A site that keeps nothing for long."""
    kept = {"HEADRACE_RESULT_TTL": "1", "HEADRACE_JOB_TTL": str(JOB_TTL_S)}
    with clones.migrated() as url, site(url, settings=kept) as running:
        yield running


def prune_results(forgetful: Site) -> int:
    async def prune() -> int:
        async with await Database.open(forgetful.database_url, application_name="test") as database:
            return await retention.prune_results(database, 500)

    return asyncio.run(prune())


def do_chore(forgetful: Site) -> None:
    """What the gateway does each minute."""

    async def prune() -> None:
        async with await Database.open(forgetful.database_url, application_name="test") as database:
            await Pruning(database, job_ttl_s=JOB_TTL_S, key_ttl_s=60, audit_ttl_s=60).often()

    asyncio.run(prune())


def test_first_the_result_goes_and_then_the_job(forgetful: Site) -> None:
    job_id = forgetful.submit("echo", {"text": "a"})
    job = forgetful.final(job_id)
    kept = datetime.fromisoformat(job["result_expires_at"]) - datetime.fromisoformat(job["finished_at"])
    assert kept.total_seconds() == pytest.approx(1, abs=0.01)

    path = f"/jobs/{job_id}/result"
    gone = eventually(
        lambda: response if (response := forgetful.get(path)).status_code != 200 else None,
        "the result expires",
    )
    assert problem(gone, 410, "result-expired")["expired_at"] == job["result_expires_at"]
    head = forgetful.client.head(path, headers=forgetful.headers())
    assert (head.status_code, head.content) == (410, b"")
    job.pop("result")
    assert forgetful.job(job_id) == {**job, "result_url": path}

    def forgotten() -> bool:
        do_chore(forgetful)
        return forgetful.get(f"/jobs/{job_id}").status_code == 404

    eventually(forgotten, "the job is pruned")
    for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/result", f"/jobs/{job_id}/events"):
        problem(forgetful.get(path), 404, "unknown-job")
    problem(forgetful.get(f"/jobs/{job_id}", Prefer="wait=5"), 404, "unknown-job")
    problem(forgetful.post(f"/jobs/{job_id}/cancel", b""), 404, "unknown-job")
    assert forgetful.get("/jobs").json()["items"] == []


def test_a_result_whose_bytes_are_gone_is_told_as_any_expired_one(quiet: Site, runner: LedgerRunner) -> None:
    job_id = quiet.submit("echo", {"text": "a"})
    runner.end(runner.claim_one("echo"))
    expires_at = "UPDATE job SET result_expires_at = '2020-02-02T20:20:20Z' WHERE id = %s"
    query(quiet.database_url, expires_at, job_id)
    assert prune_results(quiet) >= 1
    assert query(quiet.database_url, "SELECT result_place FROM job WHERE id = %s", job_id) == [("gone",)]

    document = problem(quiet.get(f"/jobs/{job_id}/result"), 410, "result-expired")
    assert document["expired_at"] == "2020-02-02T20:20:20.000Z"
    assert quiet.client.head(f"/jobs/{job_id}/result", headers=quiet.headers()).status_code == 410
    job = quiet.job(job_id)
    assert (job["status"], "result" in job) == ("succeeded", False)
    assert job["result_expires_at"] == document["expired_at"]
    with reading(quiet, job_id) as events:
        assert list(events)[-1].data["result_url"] == f"/jobs/{job_id}/result"


def test_whoever_waits_for_a_job_that_is_pruned_waits_no_longer(quiet: Site, runner: LedgerRunner) -> None:
    job_id = quiet.submit("echo", {"text": "a"})
    waited = "SELECT cardinality(waiters) = 1 AND followed FROM job WHERE id = %s"
    with ThreadPoolExecutor(1) as threads, reading(quiet, job_id) as events:
        assert events.next("state").data["status"] == "queued"
        polling = threads.submit(quiet.get, f"/jobs/{job_id}", Prefer="wait=25")
        eventually(lambda: query(quiet.database_url, waited, job_id) == [(True,)], "the job is waited for")
        query(quiet.database_url, PRUNE_AT_ONCE, job_id)
        # It ends without an event that would claim to know the end.
        assert list(events) == []
        problem(polling.result(10), 404, "unknown-job")
    problem(quiet.get(f"/jobs/{job_id}/events", Last_Event_ID="1"), 404, "unknown-job")
    assert not runner.claim("echo")
