"""Something breaks while a running call becomes a job: its client is told, and no start is needless."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import httpx2
import pytest
from harness.jobs import check_at_rest
from harness.postgres import Clones, query
from harness.problem import problem
from harness.relay import Relay, database_relay, socket_relay
from harness.site import Site, eventually, site
from harness.witness import Witness

HOLD = {"Prefer": "wait=2"}
ENDS = "headrace_handovers_total"


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="witness_functions", runners=0) as running:
        yield running


@pytest.fixture
def to_postgres(served: Site) -> Iterator[Relay]:
    """The way between the only runner and Postgres."""
    with database_relay(served.database_url) as relay:
        runner = served.start_runner(HEADRACE_DATABASE_URL=relay.url)
        served.wait_ready()
        yield relay
        runner.kill()
    for name in ("other", "runner"):
        served.processes[:] = [one for one in served.processes if one.name != name or not one.has_ended()]
    check_at_rest(served.database_url)


@pytest.fixture
def link(served: Site, to_postgres: Relay) -> Iterator[Relay]:
    """The way between the gateway and that runner."""
    with socket_relay(served.folder / "runner.sock") as relay:
        served["gateway"].stop()
        served.start_gateway()
        served.wait_ready()
        yield relay


def is_recorded(served: Site, seen: Witness) -> bool:
    """Whether the ledger has the call that was started last."""
    (job_id,) = seen.starts()
    return query(served.database_url, "SELECT 1 FROM job WHERE id = %s::uuid", job_id) == [(1,)]


def asked_for(served: Site, end: str) -> float:
    """How many handovers have come to that end."""
    return served.metric(served["gateway"], ENDS, end=end)


def is_pending(served: Site) -> bool:
    """Whether a runner was asked, and hasn't answered."""
    return served.metric(served["gateway"], "headrace_handovers_pending") == 1


def accepted(served: Site, seen: Witness, answer: Future[httpx2.Response]) -> dict[str, object]:
    """The job of a call that was answered 202, once it is final."""
    response = answer.result()
    assert response.status_code == 202, response.text
    (job_id,) = seen.starts()
    assert response.json()["job_id"] == response.headers["Headrace-Job-Id"] == job_id
    return served.final(job_id, within=30)


# ---------------------------------------------------------------------- Postgres


def test_a_reply_that_is_lost_is_asked_for_again(served: Site, to_postgres: Relay, seen: Witness) -> None:
    before = asked_for(served, "handed")
    with served.calling(("witnessed", seen.input(6, 1)), **HOLD) as (call,):
        eventually(lambda: seen.started(1), "it runs")
        to_postgres.hold_answers(to="handover_v1")
        eventually(lambda: is_recorded(served, seen), "it is recorded")
        to_postgres.cut()
        to_postgres.restore()
        job = accepted(served, seen, call)
    assert (job["status"], job["attempt"]) == ("succeeded", 1)
    assert seen.starts().total() == seen.ends().total() == 1
    assert asked_for(served, "handed") == before + 1


def test_a_call_that_ends_while_nobody_knows_is_answered(
    served: Site, to_postgres: Relay, seen: Witness
) -> None:
    """And its job, which was recorded, ends as the call did."""
    before = asked_for(served, "answered")
    with served.calling(("witnessed", seen.input(3, 7)), **HOLD) as (call,):
        eventually(lambda: seen.started(1), "it runs")
        to_postgres.hold_answers(to="handover_v1")
        eventually(seen.ends, "it ends")
        assert is_recorded(served, seen)
        to_postgres.cut()
        to_postgres.restore()
        response = call.result()
    assert (response.status_code, response.json()["number"]) == (200, 7)
    assert asked_for(served, "answered") == before + 1
    (job_id,) = seen.starts()
    job = served.final(job_id, within=30)
    assert (job["status"], job["attempt"], job["result"]) == ("succeeded", 1, response.json())
    assert seen.starts().total() == 1


def test_while_postgres_is_out_of_reach_the_answer_is_waited_for(
    served: Site, to_postgres: Relay, seen: Witness
) -> None:
    before = asked_for(served, "answered")
    with served.calling(("witnessed", seen.input(5, 7)), **HOLD) as (call,):
        eventually(lambda: seen.started(1), "it runs")
        to_postgres.cut()
        response = call.result()
    assert (response.status_code, response.json()["number"]) == (200, 7)
    assert asked_for(served, "answered") == before + 1
    to_postgres.restore()
    assert not is_recorded(served, seen)


# ---------------------------------------------------------------------- the runner


@pytest.mark.parametrize(
    ("function", "status", "starts"), [("witnessed", "succeeded", 2), ("witnessed_once", "failed", 1)]
)
def test_a_runner_that_dies_after_it_has_recorded_a_call_leaves_a_job(
    served: Site, to_postgres: Relay, seen: Witness, function: str, status: str, starts: int
) -> None:
    """Whether another start is left or not: the gateway joins the job, or looks whether it is there."""
    with served.calling((function, seen.input(5)), **HOLD) as (call,):
        eventually(lambda: seen.started(1), "it runs")
        served.start_runner("other")
        to_postgres.hold_answers(to="handover_v1")
        eventually(lambda: is_recorded(served, seen), "it is recorded")
        served["runner"].kill()
        job = accepted(served, seen, call)
    assert (job["status"], job["attempt"]) == (status, starts)
    assert seen.starts().total() == starts
    served["other"].kill()


@pytest.mark.parametrize("function", ["witnessed", "witnessed_once"])
def test_a_runner_that_dies_before_leaves_it_to_the_gateway(
    served: Site, to_postgres: Relay, seen: Witness, function: str
) -> None:
    asked = asked_for(served, "cut")
    with served.calling((function, seen.input(6)), **HOLD) as (call,):
        eventually(lambda: seen.started(1), "it runs")
        to_postgres.freeze()
        served.start_runner("other")
        eventually(lambda: is_pending(served), "it is asked to record it")
        served["runner"].kill()
        if function == "witnessed_once":
            assert problem(call.result(), 502, "worker-lost")["attempt"] == 1
            assert not is_recorded(served, seen)
        else:
            job = accepted(served, seen, call)
            assert (job["status"], job["attempt"]) == ("succeeded", 2)
    assert asked_for(served, "cut") == asked + 1
    assert seen.starts().total() == (1 if function == "witnessed_once" else 2)
    served["other"].kill()


# ---------------------------------------------------------------------- the link


@pytest.mark.parametrize("fault", [Relay.cut, pytest.param(Relay.freeze, marks=pytest.mark.slow)])
def test_a_link_that_breaks_meanwhile_changes_nothing(
    served: Site, link: Relay, to_postgres: Relay, seen: Witness, fault: Callable[[Relay], None]
) -> None:
    """The gateway submits what the runner has recorded: it joins the job, and the work goes on once."""
    with served.calling(("witnessed", seen.input(7)), **HOLD) as (call,):
        eventually(lambda: seen.started(1), "it runs")
        to_postgres.hold_answers(to="handover_v1")
        eventually(lambda: is_recorded(served, seen), "it is recorded")
        fault(link)
        to_postgres.cut()
        to_postgres.restore()
        job = accepted(served, seen, call)
    link.restore()
    assert (job["status"], job["attempt"]) == ("succeeded", 1)
    assert seen.starts().total() == seen.ends().total() == 1
