"""What `headrace bench` advises, from figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from gpu_runner.bench.advice import advise, best_batch, best_executors
from gpu_runner.bench.figures import cost_code, cost_text, figure, time_text
from gpu_runner.bench.points import Points, estimate, estimate_text
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
    if not found:
        return []
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
            {"joined": batches(1.0, 1.0, 2.0), "max_cost": 12_000.0},
            "Batch(max_cost=20), now 12,000: 2 calls together take 1 s, 2.0 times the rate of single ones",
        ),
        ({"joined": batches(1.0, 1.0), "max_cost": 10.0}, "it was the largest that was tried"),
        (
            {"joined": batches(1.0, 1.0), "max_cost": 10_000.0},
            "leave max_cost at 10,000: the rate still rose at a cost of 20, the largest",
        ),
        (
            {"joined": batches(1.0, 1.0, 2.0), "max_cost": 100.0, "missing": ["joined calls"]},
            "leave max_cost at 100 for now: it ended before batches of a higher cost than 40 were",
        ),
        ({"joined": batches(1.0), "max_cost": 100.0}, "no batch of more than one call was measured"),
        ({"joined": batches(1.0, 2.0), "max_cost": 100.0}, "more than one call of cost 10 gain nothing"),
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
        {"by_executors": rates(100, 190), "missing": ["several executors"]},
        {
            "concurrency": 4,
            "at_once": [Rate(1, 4, 1, 10, 10, 0.1)],
            "missing": ["calls at once in one executor", "several executors"],
        },
        {"joined": batches(), "max_cost": 5.0, "missing": ["joined calls"]},
    ],
)
def test_what_they_do_not_say(known: dict[str, Any]) -> None:
    assert advise(measured(**known)) == ["too little was measured for advice"]


def test_a_report_shows_what_there_is() -> None:
    whole = report(
        measured(by_cost=[Timed(1, 9, 0.1, 0.2, MIB)], joined=batches(1.0, 1.0), by_executors=rates(10, 20))
    )
    assert "score on cpu, 4 cores\n" in whole
    assert "INTERRUPTED" not in whole
    for title in ("time of a call by its cost", "joined calls", "several executors", "advice"):
        assert f"\n{title}\n" in whole
    assert " " * 2 + "#" * 15 + "\n" in whole
    assert " " * 2 + "#" * 30 + "\n" in whole
    assert not re.search(r"\de[+-]?\d", whole)


def test_a_report_says_first_that_it_is_not_whole() -> None:
    left: dict[str, Any] = {"is_whole": False, "missing": ["joined calls", "several executors"]}
    told = "before the end; not measured, or in part only: joined calls, several executors"
    assert report(measured(**left)).splitlines()[0] == f"INTERRUPTED {told}"
    assert report(measured(**left, failure="it crashed")).splitlines()[0] == f"FAILED {told}"


@pytest.mark.parametrize(
    ("known", "what"),
    [
        (
            {"by_cost": [Timed(10, 9, 0.00857, 0.01, 0)], "joined": batches(0.436), "max_cost": 10.0},
            "one call of cost 10 took 8.6 ms at first and 440 ms later",
        ),
        (
            {"joined": batches(1.0, 1.0), "max_cost": 10.0, "by_executors": [Rate(1, 4, 1, 1, 9, 4.38, 2)]},
            "2 joined calls took 1 s at first and 4.4 s later",
        ),
        (
            {"by_cost": [Timed(10, 9, 0.1, 0.1, 0)], "by_executors": [Rate(1, 4, 1, 2, 20, 0.5)]},
            "one call of cost 10 took 100 ms at first and 500 ms later",
        ),
        ({"by_cost": [Timed(10, 9, 0.1, 0.1, 0)], "by_executors": [Rate(1, 4, 1, 2, 20, 0.29)]}, None),
        ({"by_cost": [Timed(10, 9, 0.1, 0.1, 0)], "by_executors": [Rate(2, 2, 1, 2, 20, 0.9)]}, None),
    ],
)
def test_figures_that_do_not_agree_make_the_advice_weak(known: dict[str, Any], what: str | None) -> None:
    first = advise(measured(**known))[0]
    assert first.startswith("the machine was busy, so this advice is weak") == (what is not None)
    assert what is None or what in first


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (figure(0), "0"),
        (figure(0.01234), "0.0123"),
        (figure(43_812), "43,800"),
        (figure(99.96), "100"),
        (cost_text(12_930.4), "12,930"),
        (cost_code(12_930.4), "12_940"),
        (cost_code(10_000), "10_000"),
        (cost_code(0.3), "0.3"),
        (time_text(4.38, 2), "4.4 s"),
        (time_text(0.99999), "1 s"),
        (time_text(0.00857), "8.57 ms"),
    ],
)
def test_figures_have_few_digits_and_no_exponents(said: str, text: str) -> None:
    assert said == text


def test_an_estimate_knows_how_many_points_there_are_and_that_dear_calls_last_longer() -> None:
    points = Points(costs=[10.0, 20.0, 40.0], joined=[1, 2], at_once=[], executors=[1])
    assert estimate(points, 2.0) == 12.0
    assert "about 12 seconds: 3 costs, 2 sizes of joined calls, 1 number of executors, 2 s each" in (
        estimate_text(points, 2.0)
    )
    assert 12.0 < estimate(points, 2.0, single_s=0.5, cost=10.0) < 30.0
    # After a call of 5 s nothing dearer is tried: one to warm up, and one that is measured.
    assert estimate(points, 2.0, single_s=5.0, cost=10.0) == 10.0 + 10.0 + 7.0
