"""Functions that never succeed: started as often as they may be, in time, and at nobody else's cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from harness.jobs import check_at_rest
from harness.postgres import Clones, query
from harness.site import Site, eventually, site
from harness.witness import Witness


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="witness_functions") as running:
        yield running
        check_at_rest(url)


def failed(served: Site, job_id: str, category: str) -> dict[str, Any]:
    """The job once it has ended; it must have failed so."""
    job = served.final(job_id)
    assert (job["status"], job["error"]["category"]) == ("failed", category), job
    return job


@pytest.mark.parametrize(("name", "attempts"), [("witnessed_killer", 3), ("witnessed_killer_once", 1)])
def test_what_always_kills_its_process_is_started_no_more_than_it_may_be(
    served: Site, seen: Witness, name: str, attempts: int
) -> None:
    """Others that ran in a killed process are charged for it too, and are done all the same."""
    runner = served["runner-0"]
    killer = served.submit(name, seen.input(0.1))
    others = [served.submit("witnessed_neighbour", seen.input(0, number)) for number in range(20)]

    job = failed(served, killer, "attempts-exhausted")
    assert job["attempt"] == attempts
    assert seen.attempts(killer) == [(number, "start") for number in range(1, attempts + 1)]
    for number, job_id in enumerate(others):
        other = served.final(job_id)
        assert (other["status"], other["result"]["number"]) == ("succeeded", number), other
    assert max(seen.starts()[job_id] for job_id in others) <= 1 + attempts
    assert seen.ends().keys() == set(others)
    assert served.call("witnessed", seen.input()).status_code == 200
    assert not runner.has_ended()


def test_starts_after_passing_failures_are_further_and_further_apart(served: Site, seen: Witness) -> None:
    ids = [served.submit("witnessed_not_yet", seen.input(0, number)) for number in range(4)]

    for job_id in ids:
        assert failed(served, job_id, "attempts-exhausted")["attempt"] == 4
        assert seen.attempts(job_id) == [(number, "start") for number in (1, 2, 3, 4)]
        pauses = [later - sooner for sooner, later in itertools.pairwise(starts(served, job_id))]
        for number, pause in enumerate(pauses):  # 0.5 s, doubled each time, spread by half
            assert 0.25 * 2**number <= pause < 0.75 * 2**number + 5, pauses
    assert len({round(starts(served, job_id)[1], 2) for job_id in ids}) > 1, "they don't return together"


def starts(served: Site, job_id: str) -> list[float]:
    """When a job was started each time, in seconds since it was submitted."""
    statement = (
        "SELECT extract(epoch FROM e.at - j.created_at)::float FROM job_event e JOIN job j ON j.id = e.job_id"
        " WHERE j.id = %s AND e.state = 'running' ORDER BY e.sequence"
    )
    return [at for (at,) in query(served.database_url, statement, job_id)]


def test_a_deadline_that_comes_first_ends_the_retries(served: Site, seen: Witness) -> None:
    job_id = served.submit("witnessed_not_yet", seen.input(), Headrace_Deadline="1.5")

    job = failed(served, job_id, "deadline-exceeded")
    assert 0 < job["attempt"] < 4
    assert seen.starts() == {job_id: job["attempt"]}
    late = "SELECT finished_at - deadline_at < interval '5 s' FROM job WHERE id = %s"
    assert query(served.database_url, late, job_id) == [(True,)]


def test_running_out_of_memory_passes_as_other_failures_do(served: Site, seen: Witness) -> None:
    swelling = served.submit("witnessed_swelling", seen.input())
    eventually(lambda: seen.started(1), "it runs")
    other = served.submit("witnessed", seen.input())

    assert served.final(other)["status"] == "succeeded"
    assert failed(served, swelling, "attempts-exhausted")["attempt"] == 3
    assert seen.starts() == {swelling: 3, other: 1}
