"""Processes that are asked to end: their jobs are finished, given back without a charge, or left running."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator

import pytest
from harness.jobs import check_at_rest
from harness.own_postgres import own_postgres
from harness.postgres import Clones, query
from harness.site import Process, Site, eventually, site
from harness.witness import Witness

from headrace import registry
from headrace.database import Database
from headrace.registry import Registry
from headrace.runner_requests import DrainAnswer, ask_drain

NEXT_NOTICE_S = 1.2
"""Sooner, a second signal is the same notice."""


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="witness_functions") as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(served: Site) -> Iterator[None]:
    """Whatever a test has ended is started again before the next one."""
    if served["gateway"].has_ended():
        served.start_gateway()
    if served["runner-0"].has_ended():
        served.start_runner("runner-0")
        served.wait_ready()
    yield
    check_at_rest(served.database_url)


def test_a_runner_that_leaves_finishes_its_jobs_and_takes_no_more(served: Site, seen: Witness) -> None:
    ids = [served.submit("witnessed", seen.input(1, number)) for number in range(8)]
    waiting = [served.submit("witnessed", seen.input(0)) for _ in range(8)]
    eventually(lambda: seen.started(8), "eight of them run")
    assert served["runner-0"].stop() == 0
    assert "Traceback" not in served["runner-0"].output()
    assert seen.ends() == dict.fromkeys(ids, 1)
    assert {served.job(job_id)["status"] for job_id in ids} == {"succeeded"}
    assert {served.job(job_id)["status"] for job_id in waiting} == {"queued"}

    served.start_runner("runner-0")
    assert {served.final(job_id)["status"] for job_id in waiting} == {"succeeded"}
    assert seen.starts() == dict.fromkeys([*ids, *waiting], 1)


def test_a_runner_in_a_hurry_gives_its_jobs_back_uncharged(served: Site, seen: Witness) -> None:
    ids = [served.submit("witnessed", seen.input(3, number)) for number in range(7)]
    ids.append(served.submit("witnessed_once", seen.input(3)))
    eventually(lambda: seen.started(8), "all of them run")
    runner = served["runner-0"]
    runner.signal(signal.SIGTERM)
    eventually(lambda: runner.said("stopping"), "it drains")
    time.sleep(NEXT_NOTICE_S)
    assert runner.stop() == 0
    assert not seen.ends()
    unfinished = "SELECT id::text, state, attempt, charged FROM job WHERE finished_at IS NULL ORDER BY id"
    assert query(served.database_url, unfinished) == [(job_id, "queued", 1, 0) for job_id in ids]

    served.start_runner("runner-0")
    for job_id in ids:
        job = served.final(job_id)
        assert (job["status"], job["attempt"]) == ("succeeded", 2), job
    assert seen.starts() == dict.fromkeys(ids, 2)


def test_a_gateway_that_leaves_answers_those_who_wait_and_the_jobs_go_on(served: Site, seen: Witness) -> None:
    call = ("witnessed", seen.input(2))
    with served.calling(call, call, Prefer="respond-async, wait=20") as waiting:
        eventually(lambda: seen.started(2), "both run")
        assert served["gateway"].stop() == 0
        answers = [future.result() for future in waiting]
        assert not seen.ends()
    assert "Traceback" not in served["gateway"].output()
    assert [answer.status_code for answer in answers] == [202, 202]

    served.start_gateway()
    ids = [answer.json()["job_id"] for answer in answers]
    assert [served.final(job_id)["status"] for job_id in ids] == ["succeeded", "succeeded"]
    assert seen.starts() == seen.ends() == dict.fromkeys(ids, 1)


# ---------------------------------------------------------------------- an operator's request

HOLDER = "SELECT session_id::text FROM job WHERE id = %s"
LEASE = "SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float FROM job WHERE id = %s"


@contextlib.contextmanager
def others(clones: Clones, runners: int = 1, **settings: str) -> Iterator[Site]:
    """A site of the test's own."""
    more = {f"HEADRACE_{name.upper()}": value for name, value in settings.items()}
    more["HEADRACE_BRIEF_WAIT"] = "5"  # on a busy machine runners are slow, which is no fault
    functions = "witness_functions,site_functions"
    with clones.migrated() as url, site(url, functions=functions, runners=runners, settings=more) as running:
        yield running
        check_at_rest(url)


def drain(served: Site, runner_id: str) -> DrainAnswer:
    async def ask() -> DrainAnswer | None:
        async with await Database.open(served.database_url, application_name="test") as database:
            return await ask_drain(database, runner_id)

    answer = asyncio.run(ask())
    assert answer is not None
    return answer


def known(served: Site) -> Registry:
    async def load() -> Registry:
        async with await Database.open(served.database_url, application_name="test") as database:
            return await registry.load(database)

    return asyncio.run(load())


def calls(served: Site) -> dict[str, int]:
    """How many calls run in each runner, as its last heartbeat had it."""
    return {name: said.get("calls", 0) for name, said in known(served).capacity.items()}


def process_of(served: Site, runner_id: str) -> Process:
    return next(one for one in served.processes if one.said(f"registered as runner {runner_id}"))


def test_leases_and_cancels_go_on_while_a_runner_drains(clones: Clones, seen: Witness) -> None:
    lease_s = 3.0
    with others(clones, lease=str(lease_s), drain_seconds="60") as served:
        job_id = served.submit("witnessed_once", seen.input(50))
        eventually(lambda: seen.started(1), "it runs")
        ((runner_id,),) = query(served.database_url, HOLDER, job_id)
        began = time.monotonic()
        assert drain(served, runner_id) == DrainAnswer(calls=1, seconds=60.0, already=False)
        eventually(lambda: known(served).draining == {runner_id}, "the registry says so")
        assert known(served).serving == []
        assert drain(served, runner_id) == DrainAnswer(calls=1, seconds=60.0, already=True)

        while time.monotonic() - began < 2 * lease_s:
            ((left_s,),) = query(served.database_url, LEASE, job_id)
            assert left_s > 0
            time.sleep(0.05)
        assert seen.starts() == {job_id: 1}
        waiting = served.submit("echo", {"text": "not by this one"})
        assert served.job(job_id)["status"] == "running"

        cancelled = served.post(f"/jobs/{job_id}/cancel", b"")
        assert cancelled.status_code in {200, 202}  # its runner may have ended it before the answer
        assert served.final(job_id, within=15)["status"] == "cancelled"
        runner = process_of(served, runner_id)
        assert runner.wait() == 0
        assert "Traceback" not in runner.output()
        assert known(served).runners == []
        assert served.job(waiting)["status"] == "queued"
        served.start_runner("runner-1")
        assert served.final(waiting)["status"] == "succeeded"


def test_calls_go_elsewhere_and_what_does_not_fit_is_started_there_uncharged(
    clones: Clones, seen: Witness
) -> None:
    with others(clones, runners=2, drain_seconds="0") as served:
        call = ("witnessed_once", seen.input(3))
        with served.calling(call) as (direct,):
            eventually(lambda: seen.started(1), "it runs")
            job_id = served.submit("witnessed_once", seen.input(3))
            eventually(lambda: seen.started(2), "the job runs")
            eventually(lambda: sum(calls(served).values()) == 2, "both are told of")
            busy = [one for one, count in calls(served).items() if count]
            ((job_runner,),) = query(served.database_url, HOLDER, job_id)
            direct_runner = next((one for one in busy if one != job_runner), job_runner)
            answer = drain(served, direct_runner)
            assert (answer.seconds, answer.already) == (0.0, False)
            assert process_of(served, direct_runner).wait() == 0
            elsewhere = served.call("echo", {"text": "elsewhere"})
            assert elsewhere.status_code == 200, elsewhere.text
            response = direct.result()
        assert response.status_code == 200, response.text
        assert response.json()["attempt"] == 2
        assert served.final(job_id)["status"] == "succeeded"


@pytest.mark.slow
def test_a_runner_that_drains_is_ended_quickly_by_a_signal(clones: Clones, seen: Witness) -> None:
    with others(clones, drain_seconds="60") as served:
        job_id = served.submit("witnessed_once", seen.input(30))
        eventually(lambda: seen.started(1), "it runs")
        ((runner_id,),) = query(served.database_url, HOLDER, job_id)
        drain(served, runner_id)
        time.sleep(NEXT_NOTICE_S)
        began = time.monotonic()
        assert process_of(served, runner_id).stop() == 0
        assert time.monotonic() - began < 5
        assert query(served.database_url, "SELECT state, charged FROM job") == [("queued", 0)]
        assert not seen.ends()
        served.post(f"/jobs/{job_id}/cancel", b"")


@pytest.mark.slow
def test_a_drain_ends_in_time_while_postgres_is_away(seen: Witness) -> None:
    settings = {"HEADRACE_DRAIN_SECONDS": "1"}
    with own_postgres() as away, site(away.url, functions="witness_functions", settings=settings) as served:
        served.submit("witnessed_once", seen.input(30))
        eventually(lambda: seen.started(1), "it runs")
        away.crash()
        began = time.monotonic()
        assert served["runner-0"].stop() == 0
        assert time.monotonic() - began < 10
        assert "Traceback" not in served["runner-0"].output()
