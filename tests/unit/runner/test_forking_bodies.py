"""Asynchronous bodies that fork, and executors that can start no thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from child import Child, child, until

from gpu_runner.frames import Done, Failed


@pytest.fixture(scope="module")
def executor() -> Iterator[Child]:
    with child("forking_functions") as one:
        yield one


@pytest.mark.parametrize("how", ["returns", "sleeps", "waits", "exits", "forks", "tells the loop", "watches"])
def test_a_forked_child_that_comes_back_ends(executor: Child, how: str) -> None:
    executor.reported.clear()
    for _ in range(5):
        assert executor.value("forks", how=how) == "parent, 1"
        jobs = [executor.run("async_echo", how="next", seconds=0.005) for _ in range(3)]
        assert {executor.answer().job_id for _ in jobs} == set(jobs)
        assert executor.value("echo", how="next") == "next"
    assert not executor.reported


def test_a_forked_child_goes_on_with_no_other_body(executor: Child, tmp_path: Path) -> None:
    note = tmp_path / "note"
    others = [executor.run("ticks", seconds=1, note=str(note)) for _ in range(3)]
    until(note, "\n")
    for how in ("waits", "returns", "waits"):
        answer = executor.answer(executor.run("forks", how=how))
        assert answer.output == b'"parent, 1"'
    for _ in others:
        assert int(executor.answer().output) == executor.pid
    assert set(note.read_text().split()) == {str(executor.pid)}


def test_processes_that_are_started_properly_work(executor: Child) -> None:
    assert executor.value("starts_processes") == [7, 7, 7, 0, 0]
    assert executor.value("async_echo", how="next", seconds=0.005) == "next"


def test_a_call_that_gets_no_thread_fails_alone(executor: Child, tmp_path: Path) -> None:
    note = str(tmp_path / "note")
    assert executor.value("thread_limit", how="reached") == "reached"
    answer = executor.answer(executor.run("pool_note", how="first", note=note))
    assert isinstance(answer, Failed)
    assert (answer.category, answer.retryable) == ("transient", True)
    assert executor.value("thread_limit", how="gone") == "gone"
    running = executor.run("pool_note", how="running", seconds=0.5, note=note)
    until(tmp_path / "note", "running")
    assert executor.value("thread_limit", how="reached") == "reached"
    refused = executor.answer(executor.run("pool_note", how="refused", note=note))
    assert isinstance(refused, Failed)
    assert isinstance(executor.answer(running), Done)
    assert executor.value("thread_limit", how="gone") == "gone"
    together = [executor.run("pool_waits_for_others", note=str(tmp_path / "together")) for _ in range(3)]
    assert {executor.answer().output for _ in together} == {b"3"}
    # What was refused isn't run later.
    assert Path(note).read_text().split() == ["running"]
