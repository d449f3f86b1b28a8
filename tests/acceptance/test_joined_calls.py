"""Direct calls and jobs of a batched function run together, and each gets its own answer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, eventually, site

MANY = 200


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    settings = {"HEADRACE_BRIEF_WAIT": "10"}
    with (
        clones.migrated() as url,
        site(url, functions="joining_functions,site_functions", settings=settings) as running,
    ):
        yield running


class Notes:
    """What bodies have noted: which calls each run had."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def input(self, number: int, how: str = "") -> dict[str, Any]:
        return {"number": number, "how": how, "notes": str(self.path)}

    def runs(self) -> list[list[int]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [[int(number) for number in line.split()] for line in lines]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


def how_of(number: int) -> str:
    """One in ten is bad: in its body, or before it, when it is read."""
    return "" if number % 10 else ("odd" if number % 20 else "bad")


def test_200_mixed_calls_of_which_some_are_bad_are_each_answered_right(served: Site, notes: Notes) -> None:
    """An odd number is a job's."""
    numbers = list(range(1, MANY + 1))
    random.Random(7).shuffle(numbers)
    runner = served["runner-0"]

    def ask(number: int) -> Any:
        asked = notes.input(number, how_of(number))
        return served.submit("join", asked) if number % 2 else served.call("join", asked)

    with ThreadPoolExecutor(32) as threads:
        answers = dict(zip(numbers, threads.map(ask, numbers), strict=True))
    sizes: list[int] = []
    for number, answer in answers.items():
        if number % 2:
            job = served.final(answer)
            output = served.get(f"/jobs/{answer}/result")
            assert job["attempt"] == 1
        else:
            output = answer
        if how_of(number):
            problem(output, 422, "invalid-input")
            continue
        assert output.status_code == 200, output.text
        told = output.json()
        assert (told["number"], told["attempt"]) == (number, 1)
        sizes.append(told["together"])

    runs = notes.runs()
    assert Counter(number for run in runs for number in run) == Counter(
        number for number in numbers if how_of(number) != "odd"
    )
    assert all(len(run) <= 16 for run in runs)
    assert any({number % 2 for number in run} == {0, 1} for run in runs)  # both paths in one
    assert sum(size > 1 for size in sizes) > MANY / 2
    lots = served.metric(runner, "headrace_runner_batch_calls_count", function="join")
    assert served.metric(runner, "headrace_runner_batch_calls_sum", function="join") == MANY
    assert lots < MANY / 2
    assert served.metric(runner, "headrace_runner_batch_cost_sum", function="join") == MANY
    assert served.metric(runner, "headrace_runner_batch_passes_total", function="join") <= lots


def joined_beside(served: Site, notes: Notes, name: str, how: str) -> tuple[Any, list[Any], str, list[str]]:
    """One that ends its process and others, calls and jobs, that are joined with it as all wait for a slot.

    Returns:
        Its answer, the answers of the other calls, and jobs: one more like it, and the others.
    """
    with served.calling(
        ("nap", {"seconds": 1.0}), *[(name, notes.input(n)) for n in range(2, 10, 2)]
    ) as calls:
        with served.calling((name, notes.input(0, how))) as (guilty,):
            jobs = [served.submit(name, notes.input(n)) for n in range(1, 8, 2)]
            bad_job = served.submit(name, notes.input(99, how))
        return guilty.result(), [call.result() for call in calls[1:]], bad_job, jobs


def test_what_kills_its_process_ends_nobody_else(served: Site, notes: Notes) -> None:
    """All that ran beside it start once more, by themselves; it has no third start."""
    guilty, others, bad_job, jobs = joined_beside(served, notes, "join", "kill")

    assert problem(guilty, 502, "worker-lost")["attempt"] == 2
    assert [answer.status_code for answer in others] == [200] * len(others)
    assert [served.final(job)["status"] for job in jobs] == ["succeeded"] * len(jobs)
    failed = served.final(bad_job)
    assert (failed["status"], failed["attempt"]) == ("failed", 2)

    runs = notes.runs()
    starts = Counter(number for run in runs for number in run)
    assert max(map(len, runs)) > 1
    assert starts[0] == starts[99] == 2
    assert all(1 <= starts[number] <= 3 for number in starts)
    lost_together = {number for run in runs if len(run) > 1 and {0, 99} & set(run) for number in run}
    assert lost_together
    for number in lost_together:  # its last start was alone
        assert [run for run in runs if number in run][-1] == [number]


def test_one_that_goes_past_the_hard_limit_fails_by_itself(served: Site, notes: Notes) -> None:
    guilty, others, bad_job, jobs = joined_beside(served, notes, "join_briefly", "hang")

    problem(guilty, 504, "hard-limit-exceeded")
    assert [answer.status_code for answer in others] == [200] * len(others)
    assert [served.final(job)["status"] for job in jobs] == ["succeeded"] * len(jobs)
    assert served.final(bad_job)["status"] == "failed"
    runs = notes.runs()
    assert any(len(run) > 1 and {0, 99} & set(run) for run in runs)
    assert [run for run in runs if 0 in run][-1] == [0]
    assert [run for run in runs if 99 in run][-1] == [99]
    eventually(lambda: served.call("echo", {"text": "a"}).status_code == 200, "the next one works")
