"""Who does enough under overload, and that systems get the same calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from goodput import Phase, System, holds
from wire import Answer


def phase(rate: float, in_time: int) -> Phase:
    """Ten seconds."""
    return Phase("x", rate, 10.0, [(0.0, 0.1)] * in_time)


@pytest.mark.parametrize(
    ("at_capacity", "over_it", "expected"),
    [(360, 342, True), (359, 359, False), (400, 380, True), (400, 379, False)],
)
def test_enough_is_done_in_time_at_capacity_and_over_it(
    at_capacity: int, over_it: int, expected: bool
) -> None:
    assert holds(phase(40.0, at_capacity), phase(120.0, over_it)) is expected


class Wire:
    async def request(self, *_: Any) -> Answer:
        return Answer(200, {}, b"")


def test_instants_come_of_the_seed() -> None:
    def instants(seed: int, title: str = "1") -> list[float]:
        system = System("any", Wire(), "/", 1.0, 0.0, {}, seed)  # type: ignore[arg-type]
        return [at for at, _ in asyncio.run(system.load(title, 1000.0, 0.05)).good]

    assert sorted(instants(1)) == pytest.approx(sorted(instants(1)))
    assert sorted(instants(1)) != pytest.approx(sorted(instants(2)))
    assert sorted(instants(1)) != pytest.approx(sorted(instants(1, "3")))
