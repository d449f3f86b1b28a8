"""Joined calls in an executor: what is wrong with one is that one's, and what is wrong with all is halved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from child import Child, child


@pytest.fixture(scope="module")
def executor() -> Iterator[Child]:
    with child("batched_functions", "batched_beside_functions") as one:
        yield one


@pytest.mark.parametrize("function", ["each", "together", "together_async"])
def test_joined_calls_run_once_and_each_gets_its_own_output(executor: Child, function: str) -> None:
    batch = executor.end(executor.run_batch(function, *({"text": text} for text in "abcde")))
    assert batch.outcomes == ["A", "B", "C", "D", "E"]
    assert list(batch.answers) == batch.ids
    assert batch.passes == (5,)


def test_an_answer_leaves_before_the_next_output_is_encoded(executor: Child, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    batch = executor.run_batch("written", {}, {"note": str(gate)})
    batch.answers[batch.ids[0]] = executor.answer(batch.ids[0])
    gate.touch()
    assert executor.end(batch).outcomes == [{"after": "/dev/null"}, {"after": str(gate)}]


def test_a_batch_of_one_is_a_call(executor: Child) -> None:
    batch = executor.end(executor.run_batch("each", {"text": "a"}))
    assert (batch.outcomes, batch.passes) == (["A"], (1,))


@pytest.mark.parametrize("function", ["each", "together_async"])
def test_an_input_that_cant_be_read_fails_alone(executor: Child, function: str) -> None:
    batch = executor.end(executor.run_batch(function, {"text": "a"}, {"text": "\t"}, {}, {"text": 7}))
    assert batch.outcomes == ["A", "invalid-input", "", "invalid-input"]
    assert batch.failure(1).errors == (("/text", "no tabs"),)
    assert batch.passes == (2,)
    nobody = executor.end(executor.run_batch(function, {"text": "\t"}))
    assert (nobody.outcomes, nobody.passes) == (["invalid-input"], ())


def test_an_exception_in_the_place_of_an_output_fails_that_one(executor: Child) -> None:
    hows = ["", "permanent", "later", "bug", "invalid", "number", "long", ""]
    batch = executor.end(executor.run_batch("each", *({"text": "a", "how": how} for how in hows)))
    assert batch.outcomes == [
        "A", "function-failed", "transient", "function-failed", "invalid-input", "invalid-output",
        "invalid-output", "A",
    ]  # fmt: skip
    assert batch.failure(1).message == "not this one"
    assert batch.failure(2).retryable
    assert batch.failure(3).message == "The function failed."
    assert batch.failure(4).errors == (("/text", "too odd"),)
    assert "the output has 2002 bytes, the function's limit is 1024" in batch.failure(6).message
    assert batch.passes == (8,)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("short", "the function returned 1 outputs for 3 inputs"),
        ("text", "the function returned str, not a list of 3 outputs"),
        ("dict", "the function returned dict, not a list of 3 outputs"),
    ],
)
def test_what_isnt_one_output_for_each_input_fails_all(executor: Child, how: str, message: str) -> None:
    batch = executor.end(executor.run_batch("miscounts", {"how": how}, {}, {}))
    assert batch.outcomes == ["invalid-output"] * 3
    assert {answer.message for answer in map(batch.failure, range(3))} == {message}
    assert batch.passes == (3,)


@pytest.mark.parametrize("function", ["together", "together_async"])
def test_a_body_that_raises_runs_again_in_halves_until_the_bad_one_is_alone(
    executor: Child, function: str
) -> None:
    asks = [{"text": text, "how": "raise" if text == "c" else ""} for text in "abcde"]
    batch = executor.end(executor.run_batch(function, *asks))
    assert batch.outcomes == ["A", "B", "function-failed", "D", "E"]
    assert batch.passes == (5, 3, 2, 1, 2)
    assert batch.too_many == 0  # memory had nothing to do with it


def test_whoevers_input_is_refused_learns_it_and_nobody_else(executor: Child) -> None:
    batch = executor.end(executor.run_batch("together", {"text": "a"}, {"how": "refuse"}))
    assert batch.outcomes == ["A", "invalid-input"]
    assert batch.failure(1).message == "a secret of somebody"


@pytest.mark.parametrize("how", ["raise", "refuse"])
def test_what_may_start_once_isnt_run_again_and_tells_nobody_of_others(executor: Child, how: str) -> None:
    batch = executor.end(executor.run_batch("once", {"text": "a"}, {"how": how}))
    assert batch.outcomes == ["function-failed"] * 2
    assert {answer.message for answer in map(batch.failure, range(2))} == {"The function failed."}
    assert batch.passes == (2,)


def test_one_alone_is_told_its_own_error_though_it_may_start_once(executor: Child) -> None:
    batch = executor.end(executor.run_batch("once", {"how": "refuse"}))
    assert batch.failure(0).message == "a secret of somebody"


def test_a_passing_fault_is_everybodys_and_isnt_halved(executor: Child) -> None:
    batch = executor.end(executor.run_batch("together", {}, {"how": "transient"}, {}))
    assert batch.outcomes == ["transient"] * 3
    assert all(batch.failure(number).retryable for number in range(3))
    assert batch.passes == (3,)


@pytest.mark.parametrize("function", ["together", "once"])
def test_out_of_memory_halves_down_to_one_whatever_the_attempts(executor: Child, function: str) -> None:
    asks = [{"text": text, "how": "large"} for text in "abcdef"]
    batch = executor.end(executor.run_batch(function, *asks))
    assert batch.outcomes == ["A", "B", "C", "D", "E", "F"]
    assert list(batch.answers) == batch.ids
    assert batch.passes == (6, 3, 2, 1, 1, 1, 3, 2, 1, 1, 1)
    assert batch.too_many == 2


def test_progress_is_told_by_each_call(executor: Child) -> None:
    executor.reported.clear()
    batch = executor.end(executor.run_batch("tells", {}, {}))
    assert batch.outcomes == [1, 1]
    told = [(frame.job_id, frame.fraction, frame.message) for frame in executor.reported]
    assert told == [(one, number / 2, one) for number, one in enumerate(batch.ids)]


def test_an_output_that_cant_even_be_looked_at_fails_alone(executor: Child) -> None:
    batch = executor.end(executor.run_batch("broken", {"text": "a"}, {"how": "raise"}, {"text": "c"}))
    assert batch.outcomes == ["A", "function-failed", "C"]
    assert executor.end(executor.run_batch("each", {"text": "a"})).outcomes == ["A"]


def test_a_list_that_shrinks_while_its_outputs_are_encoded_answers_each(executor: Child) -> None:
    batch = executor.end(executor.run_batch("shrinks", *({"text": text} for text in "abc")))
    assert batch.outcomes == [{"text": text} for text in "abc"]
