"""Joined calls in an executor: a stop of one leaves the others be; when none is wanted, the body ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from child import Child, child, until


@pytest.fixture(scope="module")
def alone() -> Iterator[Child]:
    """An executor whose main thread reads the channel."""
    with child("batched_functions") as one:
        yield one


@pytest.fixture(scope="module")
def beside() -> Iterator[Child]:
    """An executor in which a thread reads the channel."""
    with child("batched_functions", "batched_beside_functions") as one:
        yield one


@pytest.fixture(params=["alone", "beside"])
def executor(request: pytest.FixtureRequest) -> Child:
    """Each of them."""
    one: Child = request.getfixturevalue(request.param)
    return one


def one_is_stopped(executor: Child, function: str, note: Path) -> None:
    batch = executor.run_batch(function, {"note": str(note)}, {"text": "b"}, {"text": "c"})
    until(note, "running")
    executor.stop(batch.ids[0])
    assert executor.end(batch).outcomes == ["stopped", "B", "C"]
    assert batch.passes == (3,)


def test_the_others_go_on_when_one_is_stopped(executor: Child, tmp_path: Path) -> None:
    one_is_stopped(executor, "waits", tmp_path / "note")


@pytest.mark.parametrize("function", ["waits_in_a_pool", "waits_async"])
def test_they_do_so_in_a_pool_and_in_the_loop(beside: Child, function: str, tmp_path: Path) -> None:
    one_is_stopped(beside, function, tmp_path / "note")


def test_the_body_is_told_when_all_are_stopped(executor: Child, tmp_path: Path) -> None:
    batch = executor.run_batch("goes_on", {"note": str(tmp_path / "note")}, {"text": "\t"}, {})
    until(tmp_path / "note", "running")
    executor.stop(batch.ids[0])
    executor.stop(batch.ids[2])
    assert executor.end(batch).outcomes == ["stopped", "invalid-input", "stopped"]


@pytest.mark.parametrize("function", ["waits_async", "sleeps_async"])
def test_an_asynchronous_body_is_cancelled_when_all_are_stopped(
    beside: Child, function: str, tmp_path: Path
) -> None:
    batch = beside.run_batch(function, {"note": str(tmp_path / "note")}, {})
    until(tmp_path / "note", "running")
    beside.stop(batch.ids[1])
    beside.stop(batch.ids[0])
    assert beside.end(batch).outcomes == ["stopped", "stopped"]


def test_a_stop_of_the_batch_is_one_of_each(executor: Child, tmp_path: Path) -> None:
    batch = executor.run_batch("waits", {"note": str(tmp_path / "note")}, {})
    until(tmp_path / "note", "running")
    executor.stop(batch.job_id)
    assert executor.end(batch).outcomes == ["stopped", "stopped"]


def test_a_body_that_never_looks_up_is_interrupted_by_the_batchs_id(executor: Child, tmp_path: Path) -> None:
    batch = executor.run_batch("sleeps", {"note": str(tmp_path / "note")}, {})
    until(tmp_path / "note", "running")
    executor.interrupt(batch.job_id)
    assert executor.end(batch).outcomes == ["stopped", "stopped"]
    assert executor.end(executor.run_batch("each", {"text": "a"})).outcomes == ["A"]


def test_the_soft_limit_is_the_batchs(executor: Child, tmp_path: Path) -> None:
    batch = executor.run_batch("goes_on", {"note": str(tmp_path / "note")}, {}, soft=0.05)
    assert executor.end(batch).outcomes == ["stopped", "stopped"]


def test_what_was_stopped_before_its_turn_is_left_out(executor: Child, tmp_path: Path) -> None:
    first = executor.run_batch("waits", {"note": str(tmp_path / "note")})
    until(tmp_path / "note", "running")
    second = executor.run_batch("each", {"text": "a"}, {"text": "b"})
    third = executor.run_batch("each", {"text": "c"})
    executor.stop(second.ids[0])
    executor.stop(third.ids[0])
    executor.stop(first.ids[0])
    assert executor.end(first).outcomes == ["stopped"]
    assert executor.end(second).outcomes == ["stopped", "B"]
    assert second.passes == (1,)
    assert executor.end(third).outcomes == ["stopped"]
    assert third.passes == ()


def test_what_is_stopped_meanwhile_doesnt_run_again(executor: Child, tmp_path: Path) -> None:
    asks = [{"note": str(tmp_path / "note")}, *({"text": text} for text in "bcd")]
    batch = executor.run_batch("fails_when_told", *asks)
    until(tmp_path / "note", "running")
    executor.stop(batch.ids[0])
    assert executor.end(batch).outcomes == ["stopped", "B", "C", "D"]
    assert batch.passes == (4, 1, 2)
