"""How fast calls come, and how many of those who were answered are about to call again."""

from __future__ import annotations

import pytest

from gpu_runner.batching.pace import Pace
from gpu_runner.service_times import ServiceTime
from headrace import Batch, function

MAX_WAIT = 0.5


@function(batch=Batch(max_cost=8, max_wait=MAX_WAIT))
def lengths(inputs: list[str]) -> list[int]:
    return [len(one) for one in inputs]


@pytest.fixture
def pace() -> Pace:
    return Pace(lengths.manifest, ServiceTime())


def come(pace: Pace, at: float, calls: int = 1, gap: float = 0.001) -> float:
    """So many calls come from then on; returns the instant of the last."""
    for number in range(calls):
        pace.arrived(at + number * gap, 1.0)
    return at + (calls - 1) * gap


def come_again(pace: Pace, at: float, pause: float, rounds: int = 100, callers: int = 4) -> float:
    """Callers call again so long after their answers; returns when they were answered last."""
    for _ in range(rounds):
        at = come(pace, at, callers) + 0.1
        pace.answered(at, callers)
        at += pause
    return at - pause


def test_nothing_is_expected_before_anything_has_come(pace: Pace) -> None:
    assert not pace.comes_fast
    assert pace.others_to_come(1) == 0
    pace.arrived(100.0, 1.0)
    assert not pace.comes_fast
    assert pace.others_to_come(1) == 0


def test_calls_come_fast_once_the_gaps_between_them_are_shorter_than_the_wait(pace: Pace) -> None:
    come(pace, 100.0, calls=100, gap=0.1)
    assert pace.comes_fast
    assert pace.quiet_at(0.0) == pytest.approx(109.9 + 2 * 0.1, rel=1e-3)
    assert pace.quiet_at(200.0) == pytest.approx(200 + 2 * 0.1, rel=1e-3)


def test_calls_with_longer_gaps_do_not(pace: Pace) -> None:
    come(pace, 100.0, calls=100, gap=0.6)
    assert not pace.comes_fast


def test_how_long_callers_take_to_come_back_is_learned(pace: Pace) -> None:
    answered_at = come_again(pace, 100.0, pause=0.3)
    assert pace.comes_fast
    assert pace.quiet_at(answered_at) == pytest.approx(answered_at + 2 * 0.3, abs=0.01)
    answered_at = come_again(pace, answered_at + 0.02, pause=0.02)
    assert pace.quiet_at(answered_at) == pytest.approx(answered_at + 2 * 0.04, abs=0.05)


def test_they_are_not_waited_for_where_they_take_longer_than_the_wait(pace: Pace) -> None:
    come_again(pace, 100.0, pause=0.7, callers=20)  # together the gaps between them are short
    assert pace._gap_s < MAX_WAIT
    assert not pace.comes_fast


def test_a_pause_counts_as_two_waits_at_most(pace: Pace) -> None:
    answered_at = come_again(pace, 100.0, pause=0.02)
    before = pace._return_s, pace._gap_s
    come(pace, answered_at + 3600)
    for was, now in zip(before, (pace._return_s, pace._gap_s), strict=True):
        assert now == pytest.approx(was + 0.1 * (2 * MAX_WAIT - was))


def test_the_callers_of_the_last_lot_are_to_come_until_they_have(pace: Pace) -> None:
    at = come_again(pace, 100.0, pause=0.02)
    to_come = []
    for number in range(6):
        come(pace, at + 0.02 + number * 0.001)
        to_come.append(pace.others_to_come(1))
    assert to_come == [3, 2, 1, 0, 0, 0]


def test_after_a_pause_nobody_is(pace: Pace) -> None:
    answered_at = come_again(pace, 100.0, pause=0.02)
    come(pace, pace.quiet_at(answered_at))
    assert pace.others_to_come(1) == 0


def test_nobody_waits_for_the_callers_of_lots_of_one(pace: Pace) -> None:
    at = come_again(pace, 100.0, pause=0.02, callers=2)
    for _ in range(2):
        pace.answered(at + 0.01, 1)
    come(pace, at + 0.02)
    assert pace.others_to_come(1) == 0


def test_callers_of_several_lots_share_what_is_free_and_join_no_more_than_before(pace: Pace) -> None:
    at = come_again(pace, 100.0, pause=0.02)
    pace.answered(at, 4)  # eight are away now, in two lots
    come(pace, at + 0.02)
    assert pace.others_to_come(1) == 3  # as the last lot had four
    assert pace.others_to_come(2) == 3
    assert pace.others_to_come(4) == 1
    assert pace.others_to_come(8) == 0


def test_nothing_is_waited_for_where_the_function_says_so() -> None:
    @function(batch=Batch(max_cost=8, max_wait=0))
    def at_once(inputs: list[str]) -> list[int]:
        return [len(one) for one in inputs]

    pace = Pace(at_once.manifest, ServiceTime())
    come_again(pace, 100.0, pause=0.001)
    assert not pace.comes_fast
