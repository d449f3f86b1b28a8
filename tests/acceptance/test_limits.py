"""Limits of time and of room: what runs too long is ended, what finds no room is told when to come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, answered, eventually, site


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url) as running:
        yield running


def executor_pid(served: Site) -> int:
    response = served.call("nap", {"seconds": 0})
    assert response.status_code == 200, response.text
    return response.json()["pid"]


# ---------------------------------------------------------------------- time


def test_the_hard_limit_ends_a_body_that_holds_the_interpreter(served: Site) -> None:
    before = executor_pid(served)
    response = served.call("stuck", {"seconds": 30})

    document = problem(response, 504, "hard-limit-exceeded")
    assert ("0.6 s" in document["detail"], document["attempt"]) == (True, 1)
    assert 0.6 <= response.elapsed.total_seconds() < 3
    assert not psutil.pid_exists(before)
    assert executor_pid(served) != before


def test_the_soft_limit_asks_and_the_process_lives_on(served: Site) -> None:
    before = executor_pid(served)
    response = served.call("obedient", {})

    problem(response, 504, "soft-limit-exceeded")
    assert 0.2 <= response.elapsed.total_seconds() < 3
    assert executor_pid(served) == before


def test_a_short_deadline_costs_nobody_an_executor(served: Site, tmp_path: Path) -> None:
    """Else a client could have models loaded again and again: only the function's own limit kills."""
    before = executor_pid(served)
    body = {"path": str(tmp_path / "notes"), "seconds": 2}
    response = served.call("note_alone", body, Headrace_Deadline="0.3")

    problem(response, 504, "deadline-exceeded")
    assert response.elapsed.total_seconds() < 1.5
    answered(lambda: served.call("echo", {"text": "a"}), 200)
    assert executor_pid(served) == before


def test_neighbours_of_a_killed_executor_start_again_for_nothing(served: Site) -> None:
    """`wait_together` allows one attempt: a kill that it isn't to blame for doesn't count."""
    stuck, *others = served.at_once([("stuck", {"seconds": 30})] + [("wait_together", {"seconds": 1.5})] * 5)

    problem(stuck, 504, "hard-limit-exceeded")
    assert [other.status_code for other in others] == [200] * 5
    assert {other.json()["attempt"] for other in others} == {2}


def test_however_often_limits_end_a_process_the_next_one_starts_at_once(served: Site) -> None:
    for _ in range(4):
        problem(served.call("stuck", {"seconds": 30}), 504, "hard-limit-exceeded")
        response = served.call("nap", {"seconds": 0})

        assert response.status_code == 200
        assert response.elapsed.total_seconds() < 3


def test_a_held_connection_is_given_up_and_its_slot_with_it(served: Site) -> None:
    problem(served.call("long_nap", {"seconds": 20}, Headrace_Async="never"), 504, "hold-exceeded")

    assert served.call("echo", {"text": "a"}).status_code == 200


# ---------------------------------------------------------------------- room


def test_calls_without_room_are_told_when_to_come_back(served: Site, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with served.calling(("note", {"path": str(notes), "seconds": 2})) as (running,):
        eventually(notes.exists, "the slot is taken")
        refused = served.at_once([("echo", {"text": "a"})] * 5, Headrace_Async="never")
        assert not running.done()

    assert running.result().status_code == 200
    for response in refused:
        problem(response, 503, "busy")
        assert response.elapsed.total_seconds() < 1.5
    assert served.call("echo", {"text": "a"}).status_code == 200


def test_asynchronous_functions_have_room_of_their_own(served: Site, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with served.calling(("note", {"path": str(notes), "seconds": 1})) as (running,):
        eventually(notes.exists, "the main slot is taken")
        assert served.call("wait_together", {"seconds": 0}).status_code == 200
        assert not running.done()


def test_of_more_calls_than_there_is_room_for_none_is_lost_or_doubled(served: Site, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    calls = [("note", {"path": str(notes), "mark": str(number), "seconds": 0.05}) for number in range(40)]
    answers = served.at_once(calls, Headrace_Async="never")

    executed = [str(number) for number, answer in enumerate(answers) if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert executed
    assert refused
    for answer in refused:
        problem(answer, 503, "busy")
    assert sorted(notes.read_text().split()) == sorted(executed)


def test_of_a_burst_within_the_brief_wait_all_are_answered(served: Site) -> None:
    answers = served.at_once([("echo", {"text": "a", "top_k": number}) for number in range(20)])

    assert [answer.status_code for answer in answers] == [200] * 20
    assert [answer.json()["n"] for answer in answers] == list(range(20))


# ---------------------------------------------------------------------- a process that isn't there yet


def test_calls_wait_while_the_executor_starts(served: Site) -> None:
    before = executor_pid(served)
    psutil.Process(before).kill()
    eventually(
        lambda: served["runner-0"].lines("executor 0 ended")[-1:] and not psutil.pid_exists(before),
        "the executor is gone",
    )
    answers = served.at_once([("nap", {"seconds": 0})] * 4)

    assert [answer.status_code for answer in answers] == [200] * 4
    assert {answer.json()["attempt"] for answer in answers} == {1}
    assert before not in {answer.json()["pid"] for answer in answers}
    waited = float(answers[0].headers["Server-Timing"].split("dur=")[1].partition(",")[0])
    assert waited > 100


def test_what_waits_for_a_slot_waits_for_the_next_process_when_that_one_is_killed(clones: Clones) -> None:
    """Longer than the brief wait, which is for busy processes: this one takes a second to start."""
    source = "import time\nfrom site_functions import echo, stuck\ntime.sleep(1)"
    with clones.migrated() as url, site(url, runners=0, settings={"HEADRACE_BRIEF_WAIT": "0.8"}) as slow:
        slow.write_module("slow_start", source)
        slow.start_runner(HEADRACE_FUNCTIONS="slow_start")
        answered(lambda: slow.client.get("/readyz"), 200)
        with slow.calling(("stuck", {"seconds": 30})) as (stuck,):
            running = "headrace_runner_running_calls"
            eventually(lambda: slow.metric(slow["runner"], running, slots="(main)") == 1, "it runs")
            response = slow.call("echo", {"text": "a"})

    problem(stuck.result(), 504, "hard-limit-exceeded")
    assert response.status_code == 200
    assert response.elapsed.total_seconds() > 0.8


def test_a_call_does_not_wait_longer_than_its_connection_may_be_held(served: Site) -> None:
    psutil.Process(executor_pid(served)).suspend()
    try:
        response = served.call("nap", {"seconds": 0}, Prefer="wait=1", Headrace_Async="never")
    finally:
        for process in served["runner-0"].descendants():
            process.resume()

    problem(response, 504, "hold-exceeded")
    assert response.elapsed.total_seconds() < 5
    assert served.call("echo", {"text": "a"}).status_code == 200
