"""An `Interrupt` ends a body that never looks up, and nothing else."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from child import Child, child, until

from gpu_runner.frames import DUMP, INTERRUPT, STACKS, Done, Failed, Interrupt

MAIN = ("sleeps", "locks", "waits", "reads", "computes", "runs_a_program", "awaits", "naps")
WRAPPED = ("wraps", "hides", "blames_itself", "groups")


@pytest.fixture(scope="module")
def alone() -> Iterator[Child]:
    """An executor whose main thread reads the channel."""
    with child("interrupted_functions") as one:
        yield one


@pytest.fixture(scope="module")
def beside() -> Iterator[Child]:
    """An executor in which a thread reads the channel."""
    with child("interrupted_functions", "beside_functions") as one:
        yield one


@pytest.fixture(params=["alone", "beside"])
def executor(request: pytest.FixtureRequest) -> Child:
    """Each of them."""
    one: Child = request.getfixturevalue(request.param)
    return one


def interrupted(executor: Child, function: str, note: Path, **options: Any) -> Failed:
    """How a call ends that is interrupted while its body runs."""
    job = executor.run(function, note=str(note), **options)
    until(note, "running")
    executor.interrupt(job)
    # A signal that comes just before a system call cuts nothing off: a supervisor repeats it, too.
    again = threading.Timer(5, executor.interrupt, (job,))
    again.start()
    answer = executor.answer(job)
    again.cancel()
    assert isinstance(answer, Failed), answer
    return answer


@pytest.mark.parametrize("how", [*MAIN, *WRAPPED])
def test_a_body_in_the_main_thread_is_interrupted(executor: Child, how: str, tmp_path: Path) -> None:
    answer = interrupted(executor, "main_body", tmp_path / "note", how=how)
    assert (answer.category, answer.retryable) == ("stopped", False)
    assert answer.exec_s < 10
    assert executor.value("echo", how="next") == "next"


@pytest.mark.parametrize("how", ["computes", "naps", *WRAPPED])
def test_a_body_in_a_pool_is_interrupted_between_its_steps(beside: Child, how: str, tmp_path: Path) -> None:
    other = beside.run("pool_body", how="naps", note=str(tmp_path / "other"))
    until(tmp_path / "other", "running")
    assert interrupted(beside, "pool_body", tmp_path / "note", how=how).category == "stopped"
    beside.interrupt(other)
    assert beside.answer(other).category == "stopped"


@pytest.mark.parametrize("how", ["sleeps", "wraps"])
def test_an_asynchronous_body_is_cancelled(beside: Child, how: str, tmp_path: Path) -> None:
    assert interrupted(beside, "async_body", tmp_path / "note", how=how).category == "stopped"


def test_one_that_keeps_the_loop_to_itself_is_left_to_the_hard_limit(tmp_path: Path) -> None:
    with child("beside_functions") as executor:
        job = executor.run("async_body", how="naps", note=str(tmp_path / "note"))
        until(tmp_path / "note", "running")
        executor.interrupt(job)
        # Others are heard, and what reads the channel lives.
        other = executor.run("pool_body", how="naps", note=str(tmp_path / "other"))
        until(tmp_path / "other", "running")
        executor.interrupt(other)
        assert executor.answer(other).category == "stopped"


@pytest.mark.parametrize("function", ["main_body", "pool_body"])
def test_the_exception_says_why(beside: Child, function: str, tmp_path: Path) -> None:
    interrupted(beside, function, tmp_path / "soft", how="naps")
    assert "stopped: the call has used up its soft limit" in (tmp_path / "soft").read_text()
    job = beside.run(function, how="naps", note=str(tmp_path / "cancelled"))
    until(tmp_path / "cancelled", "running")
    beside.stop(job)
    beside.interrupt(job)
    assert beside.answer(job).category == "stopped"
    assert "stopped: the call was cancelled" in (tmp_path / "cancelled").read_text()


@pytest.mark.parametrize("function", ["swallows", "pool_swallows", "async_swallows"])
def test_it_is_raised_once(beside: Child, function: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job = beside.run(function, seconds=0.3, note=str(note))
    until(note, "running")
    beside.interrupt(job)
    until(note, "swallowed")
    for _ in range(3):
        beside.interrupt(job)
    assert beside.answer(job).output == b"1"


@pytest.mark.parametrize("function", ["logs", "pool_logs"])
def test_it_is_put_off_while_a_line_is_logged(beside: Child, function: str, tmp_path: Path) -> None:
    """There, whatever is raised is swallowed."""
    note = tmp_path / "note"
    job = beside.run(function, seconds=0.5, note=str(note))
    until(note, "logging")
    beside.interrupt(job)
    until(note, "logged")
    beside.interrupt(job)
    assert beside.answer(job).category == "stopped"
    assert note.read_text() == "logging\nlogged\n"


def test_a_cancelled_task_is_cancelled_once_more(beside: Child, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job = beside.run("async_swallows", seconds=1, note=str(note))
    until(note, "running")
    beside.stop(job)
    until(note, "swallowed")
    beside.interrupt(job)
    assert beside.answer(job).output == b"2"


@pytest.mark.parametrize(("function", "how"), [("fails_by_itself", ""), ("async_body", "fails by itself")])
def test_what_fails_for_another_reason_has_failed(
    beside: Child, function: str, how: str, tmp_path: Path
) -> None:
    assert interrupted(beside, function, tmp_path / "note", how=how).category == "function-failed"


def test_a_body_that_was_told_cleans_up_in_peace(executor: Child, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job = executor.run("cleans_up", seconds=0.3, note=str(note))
    until(note, "running")
    executor.stop(job)
    until(note, "cleaning")
    executor.interrupt(job)
    assert executor.answer(job).output == b'"clean"'


def test_what_a_library_makes_of_a_check_is_a_stop_too(executor: Child) -> None:
    assert executor.answer(executor.run("wraps_a_check", soft=0.05)).category == "stopped"


@pytest.mark.parametrize("function", ["slow_input", "pool_slow_input"])
def test_one_that_comes_before_the_body_keeps_it_from_running(
    beside: Child, function: str, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    job = beside.run(function, seconds=0.5, note=str(note))
    until(note, "decoding")
    beside.interrupt(job)
    assert beside.answer(job).category == "stopped"
    assert note.read_text() == "decoding\n"


def test_one_that_comes_before_its_call_counts(executor: Child) -> None:
    executor.send(Interrupt("job-early", 1))
    assert executor.value("echo", how="first") == "first"
    executor.send(Interrupt("job-other", 2))  # another start of it
    assert executor.value("echo", how="second") == "second"


@pytest.mark.parametrize("function", ["tells", "checks"])
def test_frames_stay_whole_whenever_it_comes(executor: Child, function: str, tmp_path: Path) -> None:
    """It waits for a frame to be sent, and for a look at the channel, to be over."""
    random.seed(7)
    for number in range(10):
        note = tmp_path / str(number)
        job = executor.run(function, note=str(note))
        until(note, "running")
        time.sleep(random.random() * 0.01)
        executor.interrupt(job)
        assert executor.answer(job).category == "stopped"
        assert executor.value("echo", how="next") == "next"


def test_a_signal_alone_means_nothing(executor: Child, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job = executor.run("main_body", how="naps", note=str(note))
    until(note, "running")
    for _ in range(20):
        os.kill(executor.pid, INTERRUPT)
    executor.send(Interrupt("job-stranger", 1), Interrupt(job, 2))
    os.kill(executor.pid, INTERRUPT)
    later = executor.run("echo", how="later")
    executor.interrupt(job)
    assert executor.answer(job).category == "stopped"
    assert executor.answer(later).output == b'"later"'


@pytest.mark.parametrize("function", ["echo", "pool_echo"])
def test_it_never_reaches_another_call(beside: Child, function: str) -> None:
    """Sent at the very end of a call, over and over: it ends that one, or comes too late for it."""
    random.seed(11)
    ends = {"done": 0, "stopped": 0}
    for number in range(150):
        job = beside.run(function, how="first", seconds=0.001)
        if number % 3:  # else it comes in time, on a busy machine too
            time.sleep(random.random() * 0.002)
        beside.send(Interrupt(job, 1))
        following = beside.run(function, how="following")
        answers = {answer.job_id: answer for answer in (beside.answer(), beside.answer())}
        assert isinstance(answers[following], Done), answers
        ends["done" if isinstance(answers[job], Done) else answers[job].category] += 1
    assert ends.keys() == {"done", "stopped"}
    assert all(ends.values()), ends


@pytest.mark.parametrize("how", ["handler", "ignored", "blocked"])
def test_a_body_that_lets_no_signal_through_spoils_one_interruption_at_most(
    executor: Child, how: str, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    job = executor.run("deaf", how=how, seconds=0.1, note=str(note))
    until(note, "running")
    executor.interrupt(job)
    answer = executor.answer(job)
    # Another thread than the main one may let it through.
    assert isinstance(answer, Done) or (how, answer.category) == ("blocked", "stopped")
    assert interrupted(executor, "main_body", tmp_path / "next", how="sleeps").category == "stopped"


@pytest.mark.parametrize("how", ["handler", "ignored", "default"])
def test_a_body_that_changes_the_handler_spoils_no_later_interruption(
    executor: Child, how: str, tmp_path: Path
) -> None:
    assert executor.value("deaf", how=how) == how
    assert interrupted(executor, "main_body", tmp_path / "note", how="sleeps").category == "stopped"


def test_stacks_are_told_while_c_code_holds_the_interpreter() -> None:
    with child("executor_functions") as executor:
        link = Path(f"/proc/{executor.pid}/fd/{executor.ready.stacks_fd}")
        assert STACKS in str(link.readlink())
        executor.run("hang")
        end = time.monotonic() + 10
        while "in hang" not in link.read_text():
            assert time.monotonic() < end
            os.kill(executor.pid, DUMP)
            time.sleep(0.02)
