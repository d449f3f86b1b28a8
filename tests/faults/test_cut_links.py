"""The link between gateway and runner breaks; Postgres still reaches both."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from harness.jobs import check_at_rest
from harness.postgres import Clones
from harness.problem import problem
from harness.relay import Relay, socket_relay
from harness.site import Site, eventually, site
from harness.witness import Witness


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="witness_functions") as running:
        yield running


@pytest.fixture(scope="module")
def link(served: Site) -> Iterator[Relay]:
    with socket_relay(served.folder / "runner-0.sock") as relay:
        served["gateway"].stop()
        served.start_gateway()
        served.wait_ready()
        yield relay


@pytest.mark.parametrize("fault", [Relay.cut, Relay.freeze])
def test_jobs_go_on_and_whoever_waits_for_a_call_is_told(
    served: Site, link: Relay, seen: Witness, fault: Callable[[Relay], None]
) -> None:
    job_id = served.submit("witnessed", seen.input(1, 1))
    eventually(lambda: seen.started(1), "the job runs")
    with served.calling(("witnessed_once", seen.input(2))) as (call,):
        eventually(lambda: seen.started(2), "the call runs")
        fault(link)
        problem(call.result(), 502, "worker-lost")
    job = served.final(job_id)
    assert (job["status"], job["attempt"], job["result"]["number"]) == ("succeeded", 1, 1)
    assert seen.starts()[job_id] == seen.ends()[job_id] == 1

    later = served.submit("witnessed", seen.input(0, 2))
    assert served.final(later)["status"] == "succeeded"
    link.restore()
    served.wait_ready()
    assert served.call("witnessed", seen.input()).status_code == 200
    check_at_rest(served.database_url)
