"""Postgres crashes or is restarted while jobs run: nobody else notices more than a pause."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from harness.jobs import check_at_rest, losses
from harness.own_postgres import OwnPostgres, own_postgres
from harness.site import Site, eventually, site
from harness.witness import Witness


@pytest.fixture(scope="module")
def server() -> Iterator[OwnPostgres]:
    with own_postgres() as running:
        yield running


@pytest.fixture(scope="module")
def served(server: OwnPostgres) -> Iterator[Site]:
    """A site whose lease is the default; its gateway and runners are three maintainers."""
    functions = "witness_functions,site_functions"
    # A direct call may wait for its turn: on a busy machine the runners are slow, which is no fault.
    settings = {"HEADRACE_BRIEF_WAIT": "5"}
    with site(server.url, functions=functions, runners=2, settings=settings) as running:
        yield running


def test_an_outage_longer_than_a_lease_is_charged_to_nobody(seen: Witness) -> None:
    """The runner stops what may be another's soon; nobody takes it for lost, as it could not renew."""
    settings = {"HEADRACE_LEASE": "2"}
    with own_postgres() as away, site(away.url, functions="witness_functions", settings=settings) as served:
        ids = [served.submit("witnessed_once", seen.input(2, number)) for number in range(8)]
        eventually(lambda: seen.started(8), "all of them run")
        away.crash()
        eventually(lambda: len(served["runner-0"].lines("the lease of job ")) == 8, "it stops all of them")
        assert not seen.ends()
        with served["runner-0"].frozen():  # the gateway is the first to see the leases that ran out
            away.start()
            eventually(lambda: served["gateway"].said("maintenance goes on"), "it looks after jobs again")
            assert {served.job(job_id)["status"] for job_id in ids} == {"running"}

        for job_id in ids:
            job = served.final(job_id)
            assert (job["status"], job["attempt"]) == ("succeeded", 2), job
        assert seen.starts() == dict.fromkeys(ids, 2)
        check_at_rest(away.url)


def given_back(url: str, job_id: str) -> int:
    """How many claims of the job have lost their reply in the fault: it never ran under those."""
    with psycopg.connect(url, autocommit=True) as session:
        reasons = session.execute(
            "SELECT reason FROM job_event"
            " WHERE job_id = %s::uuid AND from_state = 'running' AND state = 'queued'",
            (job_id,),
        ).fetchall()
    assert {reason for (reason,) in reasons} <= {"given back: the reply to its claim was lost"}, reasons
    return len(reasons)


@contextlib.contextmanager
def calls_go_on(served: Site) -> Iterator[None]:
    """Direct calls, one after the other, none of which may fail."""
    stop = threading.Event()

    def call() -> int:
        calls = 0
        while not stop.is_set():
            response = served.call("echo", {"text": "a"})
            assert response.status_code == 200, response.text
            calls += 1
            time.sleep(0.01)
        return calls

    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(call)
        try:
            yield
        finally:
            stop.set()
    assert calling.result() > 10


@pytest.mark.parametrize("fault", [OwnPostgres.crash, pytest.param(OwnPostgres.stop, marks=pytest.mark.slow)])
def test_fifty_running_jobs_are_neither_lost_nor_run_twice(
    server: OwnPostgres, served: Site, seen: Witness, fault: Callable[[OwnPostgres], None]
) -> None:
    pids = [process.pid for process in served.processes]
    seconds = [1] * 10 + [3] * 40 + [0] * 10  # to end meanwhile, to run on, and to wait
    ids = [served.submit("witnessed_many", seen.input(each, number)) for number, each in enumerate(seconds)]
    eventually(lambda: seen.starts().total() >= 50, "fifty of them run")
    with calls_go_on(served):
        fault(server)
        eventually(lambda: seen.ends().total() >= 10, "some end meanwhile")
        server.start()
        jobs = [served.final(job_id) for job_id in ids]

    for number, job in enumerate(jobs):
        assert (job["status"], job["result"]["number"]) == ("succeeded", number), job
        assert job["attempt"] == 1 + given_back(server.url, job["job_id"]), job
    assert seen.starts() == seen.ends() == dict.fromkeys(ids, 1)
    check_at_rest(server.url)
    assert [process.pid for process in served.processes] == pids
    assert not any(process.has_ended() for process in served.processes)
    assert losses(served) == []
