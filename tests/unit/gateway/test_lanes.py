"""What gateways know of the ledger's lanes."""

from __future__ import annotations

import time

import pytest

from headrace.gateway.lanes import Lanes
from headrace.ledger.lanes import LaneStanding


def standing(
    waiting: int = 4, cost: float = 8.0, rate: float | None = 2.0, line_s: float = 0.0
) -> dict[str, LaneStanding]:
    one = LaneStanding(
        name="echo",
        waiting=waiting,
        waiting_cost=cost,
        rate=rate,
        is_measured=True,
        places=int(line_s > 0),
        line_s=line_s,
    )
    return {"echo": one}


@pytest.mark.parametrize(
    ("told", "wait_s", "clear_s"),
    [
        (standing(), 4, 4),
        (standing(line_s=30.0), 4, 4),  # lines are of one owner each
        (standing(rate=None), None, 0),
        (standing(rate=None, line_s=7.0), None, 0),
        (standing(waiting=0, cost=0.0, rate=None), 0, 0),
        (standing(waiting=0, cost=0.0, line_s=600.0), 0, 0),
    ],
)
def test_when_nothing_should_wait_any_more(
    told: dict[str, LaneStanding], wait_s: float | None, clear_s: float
) -> None:
    lanes = Lanes()
    assert lanes.of("echo") is None
    lanes.told(told)
    lane = lanes.of("echo")
    assert lane is not None
    assert (lane.wait_s, lane.clear_s) == (wait_s, clear_s)
    assert lanes.of("other") is None


def test_old_figures_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Lanes()
    lanes.told(standing())
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 9)
    assert lanes.of("echo") is not None  # Postgres may be away for a moment
    monkeypatch.setattr(time, "monotonic", lambda: now + 11)
    assert lanes.of("echo") is None
