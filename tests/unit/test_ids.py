from __future__ import annotations

import time
import uuid

import pytest

from headrace import ids
from headrace.ids import uuid7


def test_an_id_is_a_uuid_of_version_7() -> None:
    made = uuid.UUID(uuid7())
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert str(made) == str(made).lower()


def test_an_id_holds_the_time_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    milliseconds = uuid.UUID(uuid7()).int >> 80
    assert before <= milliseconds <= time.time_ns() // 1_000_000


def test_ids_are_distinct_and_sort_by_age() -> None:
    made = [uuid7() for _ in range(20_000)]
    assert made == sorted(set(made))


@pytest.mark.parametrize("step", [0, -5_000_000_000], ids=["stands still", "steps back"])
def test_ids_keep_their_order_when_the_clock(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    monkeypatch.setattr(ids, "_last", 0)
    monkeypatch.setattr(time, "time_ns", lambda: now)
    first = uuid7()
    monkeypatch.setattr(time, "time_ns", lambda: now + step)
    later = [uuid7() for _ in range(10_000)]
    assert [first, *later] == sorted({first, *later})
    assert all(uuid.UUID(made).version == 7 for made in later)
