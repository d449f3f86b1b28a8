"""Two runners behind one gateway: used by room, lost and found again."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Process, Site, answered, eventually, site


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, runners=2) as running:
        yield running


@pytest.fixture(autouse=True)
def both(served: Site) -> None:
    """Whatever a test has done to the runners, the next one finds two."""
    for name in ("runner-0", "runner-1"):
        if served[name].has_ended():
            served.start_runner(name)
    served.wait_ready(2)


def runner_of(served: Site, response: httpx2.Response) -> Process:
    """The runner whose executor wrote that answer; it must still live."""
    for name in ("runner-0", "runner-1"):
        if response.json()["pid"] in {process.pid for process in served[name].descendants()}:
            return served[name]
    raise AssertionError("no runner has an executor of that pid")


def test_calls_go_where_there_is_room(served: Site) -> None:
    answers = served.at_once([("nap", {"seconds": 1})] * 2)

    assert [answer.status_code for answer in answers] == [200, 200]
    assert len({answer.json()["pid"] for answer in answers}) == 2
    assert all(answer.elapsed.total_seconds() < 1.9 for answer in answers)


def test_many_calls_are_spread_evenly(served: Site) -> None:
    answers = served.at_once([("wait_together", {"seconds": 1})] * 24)

    assert [answer.status_code for answer in answers] == [200] * 24
    assert all(8 <= number <= 16 for number in Counter(answer.json()["pid"] for answer in answers).values())


def test_a_killed_runners_calls_start_again_elsewhere_where_they_may(served: Site, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    calls = [
        (name, {"path": str(notes), "mark": f"{name}-{number}", "seconds": 1.5})
        for number in range(10)
        for name in ("note_once", "note_twice")
    ]
    with served.calling(*calls) as running:
        eventually(lambda: notes.exists() and len(notes.read_text().split()) == 20, "all calls run")
        served["runner-0"].signal(signal.SIGKILL)
        killed_at = time.monotonic()
        eventually(lambda: served.runners_of("echo") == 1, "the gateway notices", within=5)
        answers = [future.result() for future in running]

    once, twice = answers[0::2], answers[1::2]
    lost = [answer for answer in once if answer.status_code != 200]
    assert 0 < len(lost) < 10
    for answer in lost:
        assert problem(answer, 502, "worker-lost")["attempt"] == 1
    assert [answer.status_code for answer in twice] == [200] * 10
    assert {answer.json()["attempt"] for answer in twice} == {1, 2}
    assert time.monotonic() - killed_at < 5

    starts = Counter(notes.read_text().split())
    for (name, note), answer in zip(calls, answers, strict=True):
        again = name == "note_twice" and answer.json()["attempt"] == 2
        assert starts[str(note["mark"])] == 1 + again


def test_a_restarted_runner_is_linked_again(served: Site) -> None:
    served["runner-1"].kill()
    eventually(lambda: served.runners_of("echo") == 1, "the gateway notices", within=5)
    assert served.call("echo", {"text": "a"}).status_code == 200

    served.start_runner("runner-1")
    eventually(lambda: served.runners_of("echo") == 2, "it is linked again")
    pids = {answer.json()["pid"] for answer in served.at_once([("nap", {"seconds": 0.5})] * 2)}
    assert len(pids) == 2


def test_a_frozen_runner_is_noticed_and_comes_back(served: Site, tmp_path: Path) -> None:
    frozen = runner_of(served, served.call("nap", {"seconds": 0}))
    frozen.signal(signal.SIGSTOP)
    try:
        # Half are sent to each: those at the frozen runner are lost with its link, and start again.
        answers = served.at_once([("note_twice", {"path": str(tmp_path / "notes"), "seconds": 0.2})] * 4)
        assert [answer.status_code for answer in answers] == [200] * 4
        assert all(answer.elapsed.total_seconds() < 6 for answer in answers)
        assert sorted(answer.json()["attempt"] for answer in answers) == [1, 1, 2, 2]
        assert served.runners_of("echo") == 1
        assert served.call("echo", {"text": "a"}).elapsed.total_seconds() < 2
    finally:
        frozen.signal(signal.SIGCONT)

    eventually(lambda: served.runners_of("echo") == 2, "the thawed runner is linked again")
    assert len({answer.json()["pid"] for answer in served.at_once([("nap", {"seconds": 0.5})] * 2)}) == 2


def test_without_a_runner_calls_are_told_so_until_one_comes(served: Site) -> None:
    for name in ("runner-0", "runner-1"):
        served[name].kill()
    eventually(lambda: served.runners_of("echo") == 0, "the gateway notices", within=5)

    response = served.call("echo", {"text": "a"})
    assert "echo" in problem(response, 503, "no-runner")["detail"]
    assert served.get("/readyz").status_code == 503

    served.start_runner("runner-0")
    answered(lambda: served.call("echo", {"text": "a"}), 200)
