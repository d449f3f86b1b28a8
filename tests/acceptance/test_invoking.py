"""Functions that call functions, on a site with one executor, of which one call may use the device."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from harness.postgres import Clones, query
from harness.problem import problem
from harness.site import START_S, Site, eventually, site

SETTINGS = {"HEADRACE_EXECUTORS": "1", "HEADRACE_DEVICE_CAP": "1"}
_CHILDREN = (
    "SELECT j.id::text FROM job j JOIN job_event e ON e.job_id = j.id AND e.sequence = 1"
    " WHERE e.actor LIKE 'call:' || %s || ':%%' ORDER BY j.created_at"
)


FAR = """\
import os
from headrace import Call, function

@function(pool="far")
def far(input: int) -> list[int]:
    return [os.getpid(), input]

@function()
async def near(input: int, *, call: Call) -> list[int]:
    return [os.getpid(), *await call.invoke(far, input)]
"""


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with (
        clones.migrated() as url,
        site(url, functions="invoking_functions", settings=SETTINGS) as running,
    ):
        yield running


def children(served: Site, job_id: str) -> list[str]:
    """The jobs that a call has made, in order."""
    return [found for (found,) in query(served.database_url, _CHILDREN, job_id)]


def ready(served: Site) -> set[str]:
    """The functions that can be executed."""
    states = served.client.get("/readyz").json()["functions"]
    return {name for name, state in states.items() if state["runners"]}


def scene(folder: Path, **more: Any) -> dict[str, Any]:
    return {"folder": str(folder), **more}


def executions(folder: Path) -> int:
    mark = folder / "executed"
    return mark.read_text().count("x") if mark.exists() else 0


def test_a_caller_that_waits_leaves_the_device_to_what_it_calls(served: Site) -> None:
    response = served.call("doubled", {"value": 4})

    assert (response.status_code, response.json()) == (200, {"value": 8})


def test_callers_may_be_called(served: Site) -> None:
    assert served.call("quadrupled", {"value": 5}).json() == {"value": 20}


def test_a_call_may_wait_for_many_at_once(served: Site) -> None:
    values = list(range(12))
    response = served.call("all_doubled", {"values": values})

    assert response.json() == {"values": [2 * one for one in values]}


def test_more_callers_than_slots_come_to_their_ends(served: Site) -> None:
    answers = served.at_once([("doubled", {"value": number}) for number in range(6)])

    assert [answer.json() for answer in answers] == [{"value": 2 * number} for number in range(6)]


def test_functions_that_wait_for_each_others_slots_do_not_stop(served: Site, tmp_path: Path) -> None:
    """Both hold the only slot of their functions when they ask for one of the other's."""
    awaiting = scene(tmp_path, awaits=["left", "right"])
    answers = served.at_once([("left", awaiting), ("right", awaiting)])

    assert [answer.json() for answer in answers] == ["left right", "right left"]


def test_joined_calls_may_each_call(served: Site) -> None:
    assert served.call("asks_the_joined", {"values": [1, 2, 3]}).json() == {"values": [2, 4, 6]}


def test_one_of_several_joined_calls_may_fail(served: Site) -> None:
    answers = served.at_once([("doubled_together", {"value": value}) for value in (1, 13, 3)])

    assert [answer.status_code for answer in answers] == [200, 500, 200]
    assert "13 can't be doubled" in problem(answers[1], 500, "function-failed")["detail"]


def test_what_streams_gives_what_its_items_are_joined_to(served: Site) -> None:
    assert served.call("asks_what_streams", {"value": 4}).json() == 6


def test_a_body_is_told_why_there_is_no_output(served: Site) -> None:
    told = served.call("told", {"value": 13}).json()

    assert (told["category"], told["message"]) == ("invalid-input", "13 can't be doubled")
    assert not told["is_passing"]
    assert served.job(told["job_id"])["error"]["category"] == "invalid-input"


def test_a_failed_call_that_is_let_pass_fails_the_caller(served: Site) -> None:
    detail = problem(served.call("doubled", {"value": 13}), 500, "function-failed")["detail"]

    assert detail == "the call of double came to nothing (invalid-input): 13 can't be doubled"


def test_a_function_is_not_called_by_what_it_has_called(served: Site) -> None:
    detail = problem(served.call("ping", {"value": 1}), 500, "function-failed")["detail"]

    assert "ping -> pong -> ping: ping can't be called" in detail


def test_a_body_that_cannot_wait_is_told_so(served: Site) -> None:
    detail = problem(served.call("asks_in_vain", {"value": 1}), 500, "function-failed")["detail"]

    assert "declare the calling function `async def`" in detail


@pytest.mark.parametrize("name", ["fails_once", "dies_once"])
@pytest.mark.parametrize("is_job", [False, True])
def test_the_second_attempt_has_the_results_of_the_first(
    served: Site, tmp_path: Path, name: str, is_job: bool
) -> None:
    if is_job:
        job = served.final(served.submit(name, scene(tmp_path)))
        assert (job["status"], job["attempt"]) == ("succeeded", 2), job
    else:
        assert served.call(name, scene(tmp_path)).status_code == 200

    assert executions(tmp_path) == 1


def test_another_call_is_another_execution(served: Site, tmp_path: Path) -> None:
    for _ in range(2):
        assert served.call("waits", scene(tmp_path)).status_code == 200

    assert executions(tmp_path) == 2


def test_a_cancel_ends_what_was_called(served: Site, tmp_path: Path) -> None:
    job_id = served.submit("waits", scene(tmp_path, awaits=["never"]))
    eventually(lambda: executions(tmp_path), "what it has called runs")
    (child,) = children(served, job_id)
    assert served.job(child)["status"] == "running"
    assert served.post(f"/jobs/{job_id}/cancel", b"").status_code in (200, 202)

    assert served.final(job_id)["status"] == "cancelled"
    assert served.final(child)["status"] == "cancelled"


def test_a_body_that_gives_up_waiting_ends_what_it_called(served: Site, tmp_path: Path) -> None:
    job_id = served.submit("loses_patience", scene(tmp_path))

    assert served.final(job_id)["result"] == "gave up"
    (child,) = children(served, job_id)
    assert served.final(child)["status"] == "cancelled"


def test_what_is_called_ends_by_the_callers_deadline(served: Site, tmp_path: Path) -> None:
    job_id = served.submit("waits", scene(tmp_path, awaits=["never"]), Headrace_Deadline="2")
    eventually(lambda: children(served, job_id), "it has called")
    (child,) = children(served, job_id)

    its, callers = (datetime.fromisoformat(served.job(one)["deadline"]) for one in (child, job_id))
    assert its <= callers + timedelta(seconds=1)  # it would have 135 s; the way from ledger to runner counts
    assert served.final(job_id)["error"]["category"] == "deadline-exceeded"
    assert served.final(child)["status"] in ("cancelled", "failed")


def test_what_is_called_counts_for_the_same_owner(served: Site, tmp_path: Path) -> None:
    job_id = served.submit("waits", scene(tmp_path))
    served.final(job_id)
    (child,) = children(served, job_id)

    owners = query(
        served.database_url,
        "SELECT DISTINCT owner_id FROM job WHERE id = ANY (%s::uuid[])",
        [job_id, child],
    )
    assert len(owners) == 1


def test_a_caller_that_fills_its_owners_quota_is_not_in_its_own_way(served: Site) -> None:
    query(served.database_url, "UPDATE owner SET most_outstanding = 1")
    try:
        deep = served.final(served.submit("quadrupled", {"value": 1}))
        answered = served.call("told", {"value": 2}).json()  # a direct call is no unfinished job
    finally:
        query(served.database_url, "UPDATE owner SET most_outstanding = NULL")

    assert deep["result"] == {"value": 4}
    assert answered["category"] == ""


def test_what_is_called_may_be_served_by_another_runner(clones: Clones) -> None:
    with clones.migrated() as url, site(url, functions="apart", runners=0) as running:
        running.write_module("apart", FAR)
        running.start_runner("near")
        running.start_runner("far", HEADRACE_POOL="far")
        eventually(lambda: ready(running) == {"near", "far"}, "each has its runner", within=START_S)
        caller, called, given = running.call("near", 5).json()

    assert (caller != called, given) == (True, 5)
