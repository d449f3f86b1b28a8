"""What a gateway has accepted is done, whether or not it lived to say so."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from harness.jobs import Submitters, all_final, check_at_rest, numbers
from harness.postgres import Clones
from harness.relay import database_relay
from harness.site import Site, eventually, site
from harness.witness import Witness


@pytest.fixture
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="witness_functions") as running:
        yield running
        eventually(lambda: all_final(url), "all jobs are final")
        check_at_rest(url)


def test_what_was_answered_for_exists_and_what_exists_is_done(served: Site, seen: Witness) -> None:
    submitters = Submitters(served, seen)
    with submitters.running(8):
        for number in range(1, 3):
            eventually(lambda number=number: submitters.have(30 * number), "jobs are accepted")
            served["gateway"].kill()
            served.start_gateway()
    assert submitters.unanswered

    eventually(lambda: all_final(served.database_url), "all jobs are final")
    found = numbers(served.database_url)
    assert submitters.accepted.items() <= found.items()
    assert len(found) <= len(submitters.accepted) + submitters.unanswered
    assert seen.starts() == seen.ends() == dict.fromkeys(found, 1)


def test_a_job_whose_gateway_died_between_commit_and_answer_is_done(clones: Clones, seen: Witness) -> None:
    """The gateway never hears of its commits: it is killed while it waits for them."""
    with (
        clones.migrated() as url,
        database_relay(url) as link,
        site(url, functions="witness_functions", runners=0) as served,
    ):
        served.start_runner()
        served["gateway"].stop()
        served.start("gateway", "headrace", "gateway", HEADRACE_DATABASE_URL=link.url)
        served.wait_answering()
        served.wait_ready()
        calls = [("witnessed", seen.input(0, number)) for number in range(4)]
        link.hold_answers(to="submit_v3")
        with ThreadPoolExecutor(4) as threads:
            lost = [threads.submit(served.call, *call, Prefer="respond-async") for call in calls]
            eventually(lambda: seen.ends().total() > 0, "a job ends before its submit is answered")
            served["gateway"].kill()
        assert all(isinstance(future.exception(), httpx2.TransportError) for future in lost)

        served.start_gateway()
        eventually(lambda: all_final(url), "all jobs are final")
        check_at_rest(url)
        for job_id in numbers(url):
            assert served.job(job_id)["status"] == "succeeded"


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_call_whose_gateway_died_while_it_became_a_job_is_done(
    clones: Clones, seen: Witness, is_recorded: bool
) -> None:
    """Nobody waits for it any longer, but its runner was asked to record it."""
    with (
        clones.migrated() as url,
        database_relay(url) as link,
        site(url, functions="witness_functions", runners=0) as served,
    ):
        served.start_runner(HEADRACE_DATABASE_URL=link.url)
        served.wait_ready()
        with ThreadPoolExecutor(1) as threads:
            lost = threads.submit(served.call, "witnessed", seen.input(4, 7), Prefer="wait=2")
            eventually(lambda: seen.started(1), "it runs")
            if is_recorded:
                link.hold_answers(to="handover_v1")
                eventually(lambda: not all_final(url), "it is recorded")
            else:
                link.freeze()
                pending = "headrace_handovers_pending"
                eventually(lambda: served.metric(served["gateway"], pending), "its runner is asked")
            served["gateway"].kill()
        assert isinstance(lost.exception(), httpx2.TransportError)

        link.cut()
        link.restore()
        served.start_gateway()
        served.wait_ready()
        (job_id,) = seen.starts()
        job = served.final(job_id)
        assert (job["status"], job["attempt"], job["result"]["number"]) == ("succeeded", 1, 7)
        assert seen.starts().total() == seen.ends().total() == 1
        check_at_rest(url)
