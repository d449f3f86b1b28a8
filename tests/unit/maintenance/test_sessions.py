"""Every way in which the absence of a lock proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.maintenance.sessions import GAP_S, SLOW_S, SessionWatch

T = TypeVar("T")

PASS_S = 0.25
MARK = datetime(2030, 1, 1, tzinfo=UTC)
RENEWED = MARK + timedelta(seconds=5)


class Looks:
    """A maintainer's passes: what it sees held, and the marks of what is absent."""

    def __init__(self, *held: str) -> None:
        self.watch = SessionWatch()
        self.now = 1000.0
        self.connection = "first"
        self.marks: dict[str, datetime | None] = {}
        self.look(*held)

    def look(self, *held: str, after_s: float = PASS_S, takes_s: float = 0.0) -> Collection[str]:
        """One pass; returns who is lost."""
        before = self.now + after_s
        self.now = before + takes_s
        absent = self.watch.look(before, self.now, self.connection, held)
        assert set(absent).isdisjoint(held)
        return self.watch.lost({one: self.marks.get(one, MARK) for one in absent})

    def looks(self, seconds: float, *held: str) -> set[str]:
        """Passes for so long; returns who is lost in any of them."""
        return {one for _ in range(round(seconds / PASS_S)) for one in self.look(*held)}


def test_a_runner_whose_lock_is_absent_for_a_second_is_lost() -> None:
    looks = Looks("a", "b")
    assert not looks.looks(1.0, "b")
    assert looks.look("b") == {"a": MARK}


def test_absence_counts_from_the_answer_that_first_told_it() -> None:
    looks = Looks("a")
    assert not looks.look(takes_s=0.9)
    assert not looks.look(after_s=0.95)
    assert looks.look(after_s=0.05)


def test_two_looks_are_needed_whatever_time_passed() -> None:
    looks = Looks("a")
    assert not looks.look(after_s=GAP_S)
    assert looks.look(after_s=1.0)


def test_a_runner_that_was_never_seen_is_not_lost() -> None:
    assert not Looks().looks(5.0)


def test_a_lock_that_is_back_begins_anew() -> None:
    looks = Looks("a")
    assert not looks.looks(1.0)
    assert not looks.look("a")
    assert not looks.looks(1.0)
    assert looks.look()


def test_a_renewal_begins_anew() -> None:
    looks = Looks("a")
    assert not looks.looks(1.0)
    looks.marks["a"] = RENEWED
    assert not looks.looks(1.0)
    assert looks.look() == {"a": RENEWED}


def test_a_runner_that_goes_on_renewing_is_never_lost() -> None:
    looks = Looks("a")
    for number in range(20):
        looks.marks["a"] = MARK + timedelta(seconds=number)
        assert not looks.looks(0.5)


def test_who_runs_nothing_is_forgotten() -> None:
    looks = Looks("a")
    looks.marks["a"] = None
    assert not looks.looks(1.25)
    looks.marks["a"] = MARK
    assert not looks.looks(5.0)


def test_what_was_claimed_by_its_last_words_is_lost_with_it() -> None:
    """The claim was committed after its runner's end."""
    looks = Looks("a")
    looks.marks["a"] = None
    assert not looks.looks(0.5)
    looks.marks["a"] = MARK
    assert not looks.looks(1.0)
    assert looks.look() == {"a": MARK}


def test_who_was_lost_is_looked_after_until_nothing_is_left() -> None:
    """A row may have been locked; another maintainer may have been quicker."""
    looks = Looks("a")
    looks.looks(1.25)
    assert looks.looks(1.0) == {"a"}
    looks.marks["a"] = None
    assert not looks.looks(1.25)
    assert looks.watch.look(looks.now, looks.now, looks.connection, []) == []


def other_connection(looks: Looks) -> None:
    looks.connection = "second"
    looks.look()


def failed_connection(looks: Looks) -> None:
    looks.watch.clear()


def gap(looks: Looks) -> None:
    looks.look(after_s=GAP_S + 0.1)


def slow_answer(looks: Looks) -> None:
    looks.look(takes_s=SLOW_S + 0.1)


@pytest.mark.parametrize("interrupt", [other_connection, failed_connection, gap, slow_answer])
def test_an_interruption_takes_what_was_seen(interrupt: Callable[[Looks], None]) -> None:
    absent, seen = Looks("a"), Looks("a")
    assert not absent.looks(1.0)
    for looks in (absent, seen):
        interrupt(looks)
        assert not looks.looks(5.0)
        assert not looks.look("a")  # seen since then
        assert not looks.looks(1.0)
        assert looks.look()


def usually(usual: T, *others: T) -> st.SearchStrategy[T]:
    return st.sampled_from([usual] * 8 * len(others) + [*others])


LOOK = st.tuples(
    st.sampled_from([(), (), (), (), ("a",), ("b",), ("a", "b")]),
    usually(0.25, 1.0, 2.5),
    usually(0.0, 0.5, 1.5),
    usually("first", "second"),
    usually(MARK, RENEWED, None),
    st.integers(1, 8),  # times
)


@given(st.lists(LOOK, max_size=40))
def test_nobody_is_lost_without_proof(story: list[Any]) -> None:
    """Whoever is lost was seen in the same uninterrupted row of looks, and is absent since, and unrenewed."""
    looks = Looks()
    began = looks.now
    row: list[tuple[float, tuple[str, ...], datetime | None]] = []
    for held, after_s, takes_s, connection, mark in [look for *look, times in story for _ in range(times)]:
        before = looks.now + after_s
        if connection != looks.connection or before - began > GAP_S or takes_s > SLOW_S:
            row.clear()
        began, looks.connection, looks.marks = before, connection, dict.fromkeys("ab", mark)
        lost = looks.look(*held, after_s=after_s, takes_s=takes_s)
        row.append((looks.now, held, mark))
        for one in lost:
            last_seen = max(number for number, (_, locks, _) in enumerate(row) if one in locks)
            absent = row[last_seen + 1 :]
            renewed = max((number for number, (*_, then) in enumerate(absent) if then != mark), default=-1)
            proof = absent[renewed + 1 :]
            assert mark is not None
            assert len(proof) >= 2
            assert before - proof[0][0] >= 1.0
