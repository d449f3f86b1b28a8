"""What `headrace bench` advises, from figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpu_runner.bench.advice import advise, best_batch, best_executors
from gpu_runner.bench.report import report
from gpu_runner.bench.results import Joined, Loading, Measured, Rate, Timed

MIB = 2**20


def measured(**known: Any) -> Measured:
    values: dict[str, Any] = {
        "function": "score",
        "device": "cpu",
        "cores": 4,
        "budget": 1000 * MIB,
        "concurrency": 1,
        "is_async": False,
        "soft_s": 20.0,
        "is_whole": True,
        "start_s": 0.5,
    }
    return Measured(**(values | known))


def rates(*calls_per_s: float) -> list[Rate]:
    """Of 1, 2, 4 ... executors on four cores."""
    return [
        Rate(2**at, 4 // 2**at, 1, each, 10 * each, 1 / each if each else 0.0)
        for at, each in enumerate(calls_per_s)
    ]


@pytest.mark.parametrize(
    ("calls_per_s", "executors"),
    [([100, 190, 380], 4), ([100, 104, 101], 1), ([100, 190, 195], 2), ([100, 60, 30], 1), ([0.0], 1)],
)
def test_the_fewest_executors_that_do_nearly_as_much_are_best(
    calls_per_s: Sequence[float], executors: int
) -> None:
    best = best_executors(measured(by_executors=rates(*calls_per_s)))
    assert best is not None
    assert best.executors == executors


def batches(*seconds: float, passes: int = 1) -> list[Joined]:
    """Of 1, 2, 4 ... calls of cost 10; `passes` is the last one's."""
    found = [Joined(2**at, 10.0 * 2**at, each, 1, 0) for at, each in enumerate(seconds)]
    last = found.pop()
    return [*found, Joined(last.calls, last.cost, last.median_s, passes, 0)]


@pytest.mark.parametrize(
    ("joined", "calls"),
    [
        (batches(1.0, 1.0, 1.0, 1.0), 8),
        (batches(1.0, 1.0, 2.0, 4.0), 2),  # the rate stays the same from there on
        (batches(1.0, 2.0, 4.0), 1),
        (batches(1.0, 1.0, 1.0, passes=2), 2),  # the last one was too large for the memory
        (batches(8.0, 9.0, 12.0, 14.0), 2),  # the others come too near to the soft limit of 20 s
    ],
)
def test_the_smallest_batch_at_nearly_the_best_rate_is_best(joined: list[Joined], calls: int) -> None:
    best = best_batch(measured(joined=joined, max_cost=100.0))
    assert best is not None
    assert best.calls == calls


def test_no_batch_is_best_where_none_ends_in_time() -> None:
    assert best_batch(measured(joined=batches(15.0), max_cost=100.0)) is None


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (
            {"by_executors": rates(100, 190, 380)},
            "HEADRACE_EXECUTORS=4, 1 thread each: 380 calls/s, 3.8 times",
        ),
        (
            {"by_executors": rates(100, 101)},
            "HEADRACE_EXECUTORS=1, 4 threads each: 100 calls/s; more executors",
        ),
        ({"by_executors": rates(100)}, "runners of this kind serve, 80% busy: 1: 80/s, 2: 160/s, 4: 320/s"),
        (
            {"joined": batches(1.0, 1.0, 2.0), "max_cost": 100.0},
            "Batch(max_cost=20), now 100: 2 calls together take 1e+03 ms, 2.0 times the rate of single ones",
        ),
        ({"joined": batches(1.0, 1.0), "max_cost": 100.0}, "it was the largest that was tried"),
        (
            {"concurrency": 4, "at_once": [Rate(1, 4, 1, 10, 10, 0.1), Rate(1, 4, 4, 40, 40, 0.1)]},
            "concurrency=4 is right",
        ),
        (
            {"concurrency": 4, "at_once": [Rate(1, 4, 1, 10, 10, 0.1), Rate(1, 4, 4, 10, 10, 0.4)]},
            "concurrency=1 instead of 4: 10 calls/s in one executor",
        ),
        (
            {"by_cost": [Timed(1, 9, 0.1, 0.1, 0), Timed(8, 9, 0.2, 0.2, 0)]},
            "8 times the cost takes only 2.0 times the time: joined calls",
        ),
        (
            {"each": 300 * MIB},
            "one executor takes up to 300MiB of its own: 3 executors of it fit into 1000MiB",
        ),
        (
            {"models": [Loading("mine:big", 100 * MIB, 1.0)]},
            "@model(memory='120MiB') for mine:big: it took 100MiB",
        ),
        ({}, "too little was measured"),
    ],
)
def test_what_the_figures_say(known: dict[str, Any], sentence: str) -> None:
    assert any(sentence in one for one in advise(measured(**known)))


@pytest.mark.parametrize(
    "known",
    [
        {"by_cost": [Timed(1, 9, 0.1, 0.1, 0), Timed(8, 9, 0.8, 0.8, 0)]},
        {"by_cost": [Timed(1, 9, 0.1, 0.1, 0), Timed(8, 9, 0.2, 0.2, 0)], "max_cost": 5.0},
        {"by_cost": [Timed(0, 9, 0.0, 0.0, 0), Timed(0, 9, 0.0, 0.0, 0)]},
        {"each": 1 * MIB},
    ],
)
def test_what_they_do_not_say(known: dict[str, Any]) -> None:
    assert advise(measured(**known)) == ["too little was measured for advice"]


def test_a_report_shows_what_there_is() -> None:
    whole = report(
        measured(by_cost=[Timed(1, 9, 0.1, 0.2, MIB)], joined=batches(1.0, 1.0), by_executors=rates(10, 20))
    )
    assert "score on cpu, 4 cores\n" in whole
    assert "cut short" not in whole
    for title in ("time of a call by its cost", "joined calls", "several executors", "advice"):
        assert f"\n{title}\n" in whole
    assert " " * 2 + "#" * 15 + "\n" in whole
    assert " " * 2 + "#" * 30 + "\n" in whole
    assert "cut short" in report(measured(is_whole=False))
