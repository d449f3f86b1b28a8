"""Postgres commits, and the reply never comes: whoever asked finds out, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.jobs import check_at_rest
from harness.postgres import Clones, query
from harness.problem import problem
from harness.relay import Relay, database_relay
from harness.site import Site, answered, eventually, site
from harness.witness import Witness


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    """A site whose lease is so long that nothing is ever taken for lost."""
    with clones.migrated() as url, site(url, functions="witness_functions", runners=0) as running:
        yield running


@pytest.fixture
def to_runner(served: Site) -> Iterator[Relay]:
    """The way between a runner and Postgres."""
    with database_relay(served.database_url) as link:
        runner = served.start_runner(HEADRACE_DATABASE_URL=link.url)
        served.wait_ready()
        yield link
        assert not runner.has_ended()
        runner.kill()
    check_at_rest(served.database_url)


def states(served: Site, state: str) -> int:
    return query(served.database_url, "SELECT count(*) FROM job WHERE state = %s", state)[0][0]


def test_jobs_whose_claim_was_never_answered_are_given_back(
    served: Site, to_runner: Relay, seen: Witness
) -> None:
    to_runner.hold_answers(to="claim_v2")
    ids = [served.submit("witnessed", seen.input(0, number)) for number in range(3)]
    eventually(lambda: states(served, "running") > 0, "it claims")
    claimed = states(served, "running")
    to_runner.cut()
    assert not seen.starts()
    to_runner.restore()

    jobs = [served.final(job_id, within=15) for job_id in ids]
    assert [job["status"] for job in jobs] == ["succeeded"] * 3
    assert [job["attempt"] for job in jobs].count(2) == claimed
    assert seen.starts() == dict.fromkeys(ids, 1)
    assert query(served.database_url, "SELECT DISTINCT charged FROM job WHERE id = ANY (%s)", ids) == [(1,)]


def test_an_outcome_whose_record_was_never_answered_stands(
    served: Site, to_runner: Relay, seen: Witness
) -> None:
    ids = [served.submit("witnessed", seen.input(1, number)) for number in range(3)]
    eventually(lambda: seen.started(3), "all of them run")
    to_runner.hold_answers(to="finish_v2")
    eventually(lambda: states(served, "running") < 3, "it records")
    to_runner.cut()
    to_runner.restore()

    for job_id in ids:
        job = served.final(job_id, within=15)
        assert (job["status"], job["attempt"]) == ("succeeded", 1), job
    served.final(served.submit("witnessed", seen.input()))  # once that is recorded, so is all before it
    assert not served["runner"].said("job "), "nothing was fenced"
    assert seen.starts().total() == seen.ends().total() == 4


def test_a_renewal_that_was_never_answered_ends_nothing(
    served: Site, to_runner: Relay, seen: Witness
) -> None:
    ids = [served.submit("witnessed", seen.input(7, number)) for number in range(3)]  # it renews every 5 s
    eventually(lambda: seen.started(3), "all of them run")
    lease = "SELECT min(lease_expires_at) FROM job WHERE id = ANY (%s)"
    before = query(served.database_url, lease, ids)
    to_runner.hold_answers(to="renew_v1")
    eventually(lambda: query(served.database_url, lease, ids) > before, "it renews")
    assert not seen.ends()
    to_runner.cut()
    to_runner.restore()

    for job_id in ids:
        job = served.final(job_id, within=15)
        assert (job["status"], job["attempt"]) == ("succeeded", 1), job
    assert seen.starts() == seen.ends() == dict.fromkeys(ids, 1)


def test_a_cancel_that_was_not_heard_reaches_its_runner(
    served: Site, to_runner: Relay, seen: Witness
) -> None:
    job_id = served.submit("witnessed", seen.input(20))
    eventually(lambda: seen.started(1), "it runs")
    to_runner.cut()
    eventually(lambda: served["runner"].said("listening failed"), "it can't hear")
    assert served.post(f"/jobs/{job_id}/cancel", b"").json()["status"] == "cancel_requested"
    to_runner.restore()

    assert served.final(job_id, within=15)["status"] == "cancelled"
    assert not seen.ends()


@pytest.fixture
def to_gateway(served: Site) -> Iterator[Relay]:
    """The way between the gateway and Postgres; the runner has one of its own."""
    with database_relay(served.database_url) as link:
        runner = served.start_runner("direct")
        served["gateway"].stop()
        served.start("gateway", "headrace", "gateway", HEADRACE_DATABASE_URL=link.url)
        served.wait_answering()
        served.wait_ready()
        yield link
        runner.kill()
    check_at_rest(served.database_url)


def test_a_client_whose_submit_was_never_answered_is_told_how_to_find_out(
    served: Site, to_gateway: Relay, seen: Witness
) -> None:
    to_gateway.hold_answers(to="submit_v3")
    with served.calling(("witnessed", seen.input()), Prefer="respond-async") as (submit,):
        eventually(lambda: seen.ends().total() == 1, "the job ends before its submit is answered")
        to_gateway.cut()
        document = problem(submit.result(), 503, "database-unavailable")
    to_gateway.restore()

    job = served.final(document["job_id"])
    assert (job["status"], job["attempt"]) == ("succeeded", 1)
    assert seen.starts() == {document["job_id"]: 1}


def test_a_client_whose_job_was_submitted_twice_gets_its_result(
    served: Site, to_gateway: Relay, seen: Witness
) -> None:
    """Told to come again, without the job's id, it would have the call executed twice."""
    to_gateway.hold_answers(to="submit_v3")
    with served.calling(("witnessed", seen.input()), Prefer="respond-async, wait=30") as (submit,):
        eventually(lambda: seen.ends().total() == 1, "the job ends before its submit is answered")
        to_gateway.cut()
        to_gateway.restore(until="array_append(waiters")
        eventually(lambda: to_gateway.holds_answers, "it knows of the job, and asks to be told of its end")
        to_gateway.cut()
        to_gateway.restore()
        response = submit.result()

    assert response.status_code == 200
    assert seen.starts() == {response.headers["Headrace-Job-Id"]: 1}


def test_a_client_whose_cancel_was_never_answered_may_repeat_it(
    served: Site, to_gateway: Relay, seen: Witness
) -> None:
    job_id = served.submit("witnessed", seen.input(20))
    eventually(lambda: seen.started(1), "it runs")
    to_gateway.hold_answers(to="cancel_v1")
    with ThreadPoolExecutor(1) as threads:
        cancel = threads.submit(served.post, f"/jobs/{job_id}/cancel", b"")
        ended = "SELECT finished_at IS NOT NULL FROM job WHERE id = %s"
        eventually(
            lambda: query(served.database_url, ended, job_id)[0][0],
            "it ends before its cancel is answered",
        )
        to_gateway.cut()
        problem(cancel.result(), 503, "database-unavailable")
    to_gateway.restore()

    again = answered(lambda: served.post(f"/jobs/{job_id}/cancel", b""), 200)
    assert again.json()["status"] == "cancelled"
    assert (seen.starts(), seen.ends()) == ({job_id: 1}, {})
    told = "SELECT count(*) FROM job_event WHERE job_id = %s AND state = 'cancel_requested'"
    assert query(served.database_url, told, job_id) == [(1,)]
