"""The loop that prunes: all kinds in turns, in batches, and no longer than its time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from headrace.errors import DatabaseUnavailable
from headrace.maintenance import pruning
from headrace.maintenance.pruning import LIMIT, WITHIN, prune


class Things:
    """So many rows of each kind, each of which takes so long to forget; the clock is this one's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: Mapping[str, int], row_s: float = 0.0) -> None:
        self.rows = dict(rows)
        self.asked: list[tuple[str, int]] = []
        self.now = 100.0
        self._row_s = row_s
        monkeypatch.setattr(pruning, "monotonic", lambda: self.now)

    def prune(self) -> dict[str, int]:
        async def forget(kind: str, limit: int) -> int:
            self.asked.append((kind, limit))
            count = min(limit, self.rows[kind])
            self.rows[kind] -= count
            self.now += count * self._row_s
            return count

        return asyncio.run(prune({kind: lambda limit, kind=kind: forget(kind, limit) for kind in self.rows}))


def test_goes_on_until_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    things = Things(monkeypatch, {"jobs": 3000, "keys": 0, "results": 120})
    assert things.prune() == {"jobs": 3000, "keys": 0, "results": 120}
    assert caplog.messages == ["pruned 3000 jobs, 120 results"]
    assert max(limit for _, limit in things.asked) == LIMIT
    # In turns, and nobody is asked again who had nothing more.
    assert [kind for kind, _ in things.asked[:5]] == ["jobs", "keys", "results", "jobs", "results"]
    assert [kind for kind, _ in things.asked].count("keys") == 1


def test_nothing_to_prune_is_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert Things(monkeypatch, {"jobs": 0, "keys": 0}).prune() == {"jobs": 0, "keys": 0}
    assert caplog.messages == []


def test_leaves_the_rest_to_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    things = Things(monkeypatch, {"jobs": 10**6, "results": 10**6}, row_s=0.001)
    counts = things.prune()
    assert WITHIN <= things.now - 100 <= WITHIN + LIMIT * 0.001
    assert counts["jobs"] == pytest.approx(counts["results"], abs=LIMIT)  # neither starves
    assert things.prune()["jobs"] > 0


def test_large_rows_are_forgotten_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    things = Things(monkeypatch, {"results": 200}, row_s=0.1)
    things.prune()
    limits = [limit for _, limit in things.asked]
    assert limits[:4] == [50, 25, 12, 6]
    assert max(limits[4:]) * 0.1 < 2


def test_what_was_done_before_an_error_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    things = Things(monkeypatch, {"jobs": 7})

    async def fail(_limit: int) -> int:
        raise DatabaseUnavailable("gone")

    async def forget(limit: int) -> int:
        return min(limit, things.rows["jobs"])

    with pytest.raises(DatabaseUnavailable):
        asyncio.run(prune({"jobs": forget, "keys": fail}))
    assert caplog.messages == ["pruned 7 jobs"]
