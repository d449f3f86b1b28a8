from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.maintenance import ClockGuard
from headrace.maintenance.clock import SLOW_S

LEASE_S = 30.0
EPOCH = 1_800_000_000.0


class Look:
    """A database's clock, `EPOCH` ahead of this machine's, and a guard that is past its first lease."""

    def __init__(self) -> None:
        self.guard = ClockGuard(LEASE_S)
        self.boot = 1000.0
        self.database = EPOCH
        self.took = 0.0
        self.passes()
        self.passes(LEASE_S)
        assert self.trusts()

    def passes(self, seconds: float = 0.25, *, answers_in: float = 0.0, sees_at: float = 0.0) -> float:
        """Time passes, then the clocks are compared; the database reads its own `sees_at` later."""
        before = self.boot + seconds
        self.boot = before + answers_in
        self.took = self.boot - before
        return self.guard.compare(before, self.database + before + sees_at, self.boot)

    def trusts(self) -> bool:
        return self.guard.trusts(self.boot)


def test_leases_count_only_after_the_first_one() -> None:
    guard = ClockGuard(LEASE_S)
    guard.distrust(5.0)
    assert not guard.trusts(5.0)
    assert not guard.trusts(5.0 + LEASE_S - 0.01)
    assert guard.trusts(5.0 + LEASE_S)


@pytest.mark.parametrize("jump", [1.1, 3600.0, -1.1, -3600.0])
def test_jump_of_the_database_stops_leases_for_one_lease(jump: float) -> None:
    look = Look()
    look.database += jump
    assert look.passes() == pytest.approx(jump)
    assert not look.trusts()
    assert look.passes() == 0
    look.passes(LEASE_S - 0.5)
    assert not look.trusts()
    look.passes(0.25)
    assert look.trusts()


@pytest.mark.parametrize("move", [0.5, -0.5])
def test_adjustment_is_no_jump_and_does_not_add_up(move: float) -> None:
    look = Look()
    for _ in range(10):
        look.database += move
        assert look.passes() == 0
        assert look.trusts()


@pytest.mark.parametrize("seconds", [0.01, 60.0, 86_400.0])
def test_time_between_two_looks_is_no_jump(seconds: float) -> None:
    look = Look()
    assert look.passes(seconds) == 0
    assert look.trusts()


@given(answers=st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1)), max_size=20))
def test_slow_answers_are_no_jump(answers: list[tuple[float, float]]) -> None:
    look = Look()
    for answers_in, share in answers:
        assert look.passes(answers_in=answers_in, sees_at=answers_in * share) == 0
        assert look.trusts() == (look.took <= SLOW_S)
    look.passes()
    assert look.trusts()


@given(
    jump=st.floats(1.01, 1e6) | st.floats(-1e6, -1.01),
    answers=st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1)), max_size=5),
)
def test_no_lease_counts_behind_a_jump_however_slow_the_answers(
    jump: float, answers: list[tuple[float, float]]
) -> None:
    look = Look()
    look.database += jump
    for answers_in, share in [*answers, (0.0, 0.0)]:
        look.passes(answers_in=answers_in, sees_at=answers_in * share)
        assert not look.trusts()
