"""Processes that are asked to end finish what they have begun; those that are killed leave no mess."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, eventually, site


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, runners=2) as running:
        yield running


@pytest.fixture(autouse=True)
def whole(served: Site) -> None:
    """Whatever a test has ended is started again for the next one."""
    if served["gateway"].has_ended():
        served.start_gateway()
    for name in ("runner-0", "runner-1"):
        if served[name].has_ended():
            served.start_runner(name)
    served.wait_ready(2)


def slow(path: Path, seconds: float) -> tuple[str, dict[str, object]]:
    return "note_once", {"path": str(path), "mark": "x", "seconds": seconds}


def wait_running(path: Path, number: int) -> None:
    eventually(lambda: path.exists() and path.read_text().count("x") == number, f"{number} calls run")


def test_a_runner_that_leaves_finishes_its_calls_and_new_ones_go_elsewhere(
    served: Site, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    stop = time.monotonic() + 2
    with served.calling(*[slow(notes, 1)] * 8) as running, ThreadPoolExecutor(2) as threads:
        wait_running(notes, 8)
        steady = [threads.submit(call_until, served, stop) for _ in range(2)]
        assert served["runner-0"].stop() == 0
        assert [future.result().status_code for future in running] == [200] * 8
        assert {status for future in steady for status in future.result()} == {200}

    assert notes.read_text().count("x") == 8
    assert "Traceback" not in served["runner-0"].output()
    eventually(lambda: served.runners_of("echo") == 1, "it is gone from the gateway")


def call_until(served: Site, end: float) -> list[int]:
    statuses: list[int] = []
    while time.monotonic() < end:
        statuses.append(served.call("wait_together", {"seconds": 0.01}).status_code)
    return statuses


def test_calls_that_find_only_a_leaving_runner_are_refused(served: Site, tmp_path: Path) -> None:
    served["runner-1"].kill()
    eventually(lambda: served.runners_of("echo") == 1, "one is left")
    notes = tmp_path / "notes"
    with served.calling(slow(notes, 1)) as (running,):
        wait_running(notes, 1)
        served["runner-0"].signal(signal.SIGTERM)
        eventually(lambda: served["runner-0"].said("stopping"), "it drains")
        response = served.call("echo", {"text": "a"})
        assert not running.done()
        assert running.result().status_code == 200

    problem(response, 503, "no-runner")
    assert served["runner-0"].wait() == 0


def test_a_second_signal_cuts_the_drain_short(served: Site, tmp_path: Path) -> None:
    served["runner-1"].kill()
    eventually(lambda: served.runners_of("echo") == 1, "one is left")
    runner, notes = served["runner-0"], tmp_path / "notes"
    with served.calling(slow(notes, 8)) as (running,):
        wait_running(notes, 1)
        runner.signal(signal.SIGTERM)
        eventually(lambda: runner.said("stopping"), "it drains")
        time.sleep(1)  # sooner, it would be the same notice
        hurried_at = time.monotonic()
        assert runner.stop() == 0
        assert time.monotonic() - hurried_at < 4
        lost = running.result()  # no start of its is charged, so it is to run again
        assert (lost.status_code, lost.json()["status"]) == (202, "queued"), lost.text


def test_a_gateway_that_leaves_answers_what_it_has_taken(served: Site, tmp_path: Path) -> None:
    gateway, notes = served["gateway"], tmp_path / "notes"
    with served.calling(*[slow(notes, 3)] * 4) as running:
        wait_running(notes, 4)
        gateway.signal(signal.SIGTERM)
        eventually(lambda: is_refused(served), "new connections are refused", within=3)
        assert not any(future.done() for future in running)
        answers = [future.result() for future in running]

    assert [answer.status_code for answer in answers] == [200] * 4
    assert gateway.wait() == 0
    assert "Traceback" not in gateway.output()
    for answer in answers:
        (line,) = served.access_lines(answer.headers["X-Request-Id"])
        assert line["status"] == 200


def is_refused(served: Site) -> bool:
    try:
        with httpx2.Client(trust_env=False) as fresh:
            return fresh.get(f"{served.url}/healthz").status_code != 200
    except httpx2.TransportError:
        return True


def test_an_idle_gateway_leaves_at_once(served: Site) -> None:
    assert served.call("echo", {"text": "a"}).status_code == 200  # its connection stays open
    asked_at = time.monotonic()

    assert served["gateway"].stop() == 0
    assert time.monotonic() - asked_at < 5


def test_the_work_of_a_killed_gateway_is_stopped_and_the_next_one_finds_the_runners(
    served: Site, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    with ThreadPoolExecutor(1) as threads:
        lost: Future[httpx2.Response] = threads.submit(served.call, "watched_async", {"path": str(notes)})
        eventually(notes.exists, "the call runs")
        served["gateway"].kill()
        assert isinstance(lost.exception(), httpx2.TransportError)
        eventually(lambda: notes.read_text() == "started\nstopped\n", "the work is stopped", within=5)

    served.start_gateway()
    served.wait_ready(2)
    assert served.call("echo", {"text": "a"}).status_code == 200
