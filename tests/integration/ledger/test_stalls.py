"""What is measured of a lane that stalls, as one does that loads a model: `measured_v1` look by look."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from harness.ledger import LANE, opened

from headrace.database import Database

_START: Final = (
    "INSERT INTO lane_pace (lane, waiting, waiting_work, is_backlogged, is_measured, slots, starts, work,"
    " refreshed_at) VALUES (%(lane)s, 100, 100, true, false, %(slots)s, 0, 0, '2030-01-01')"
)
_LOOK: Final = """
UPDATE lane_pace SET span_s = m.span_s, span_starts = m.span_starts, span_work = m.span_work,
    has_begun = m.has_begun, gap_s = m.gap_s, run_s = m.run_s, run_starts = m.run_starts,
    run_work = m.run_work,
    measured_at = m.measured_at, starts = m.starts, work = m.work, refreshed_at = m.refreshed_at
FROM (
    SELECT (measured_v1(jsonb_populate_record(p, jsonb_build_object(
        'starts', p.starts + %(starts)s, 'work', p.work + %(starts)s,
        'refreshed_at', p.refreshed_at + make_interval(secs => 0.5))), true, NULL, p)).* FROM lane_pace p
) AS m
"""
_RATE: Final = "SELECT span_starts, span_work / nullif(span_s + gap_s, 0) AS rate FROM lane_pace"


class Lane:
    """A lane in which jobs wait all the time, looked at each half a second."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, slots: int) -> None:
        await self._database.execute("DELETE FROM lane_pace")
        await self._database.execute(_START, {"lane": LANE, "slots": slots})

    async def start(self, rate: float, seconds: float) -> float | None:
        """So many are started in a second; the rate afterwards, None where none is known."""
        had = 0.0
        for _ in range(round(seconds * 2)):
            had += rate / 2
            await self._database.execute(_LOOK, {"starts": int(had)})
            had -= int(had)
        (row,) = await self._database.fetch(_RATE)
        return row["rate"] if row["span_starts"] > 3.9 else None


def test_a_load_is_no_rate(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            lane = Lane(database)
            await lane.begin(4)
            assert await lane.start(0, 5) is None
            assert await lane.start(8, 0.5) is None, "four starts fill the slots"
            assert await lane.start(0, 60) is None
            await lane.start(8, 4)
            assert await lane.start(8, 0.5) == pytest.approx(8, rel=0.15)
            assert await lane.start(8, 30) == pytest.approx(8, rel=0.05)

    asyncio.run(scenario())


def test_after_a_stall_the_rate_is_what_it_was(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            lane = Lane(database)
            await lane.begin(4)
            assert await lane.start(8, 60) == pytest.approx(8, rel=0.05)
            assert (await lane.start(0, 30) or 0) < 6
            assert await lane.start(8, 4) == pytest.approx(8, rel=0.15)

    asyncio.run(scenario())


def test_jobs_that_end_together_are_no_stalls(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            lane = Lane(database)
            await lane.begin(4)
            for cycle in range(5):
                await lane.start(8, 0.5)
                rate = await lane.start(0, 39.5)
                assert rate is None if cycle == 0 else rate == pytest.approx(0.1, rel=0.55)
            # Waves of 32 starts, each six seconds apart.
            await lane.begin(32)
            for cycle in range(8):
                await lane.start(64, 0.5)
                rate = await lane.start(0, 5.5)
                assert rate is None if cycle == 0 else rate == pytest.approx(32 / 6, rel=0.55)

    asyncio.run(scenario())


def test_a_rate_that_falls_is_followed(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            lane = Lane(database)
            await lane.begin(4)
            await lane.start(8, 500)
            assert await lane.start(2, 300) == pytest.approx(2, rel=0.15)

    asyncio.run(scenario())
