"""For how long nobody has served a function, as a gateway knows: `Retry-After` of `no-runner` says so."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import pytest
from harness.scripted_calls import manifest

from headrace.domain import RunnerInfo
from headrace.gateway.directory import Directory
from headrace.gateway.metrics import GatewayMetrics
from headrace.registry import Registry

READING: Final = Registry(
    functions={"echo": manifest()},
    retired={},
    registered={},
    runners=[],
    draining=frozenset(),
    metrics={},
)


def clocked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_function_is_away_since_its_last_link_went(monkeypatch: pytest.MonkeyPatch) -> None:
    now, linked = clocked(monkeypatch), set[tuple[str, str]]()
    directory = Directory(GatewayMetrics(), lambda name, interface: (name, interface) in linked)
    directory.update(READING)
    assert directory.away_s("echo", "1234") is None  # it never had a runner, as far as is known
    linked.add(("echo", "1234"))
    directory.choose()
    now[0] += 500
    linked.clear()
    directory.choose()
    now[0] += 3
    directory.update(READING)  # whatever is read meanwhile
    assert directory.away_s("echo", "1234") == 3
    linked.add(("echo", "1234"))
    directory.choose()
    linked.clear()
    directory.choose()
    assert directory.away_s("echo", "1234") == 0


def test_a_gateway_that_has_just_started_knows_when_a_runner_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = clocked(monkeypatch)
    directory = Directory(GatewayMetrics())
    directory.update(replace(READING, last_seen={("echo", "1234"): 40.0}))
    now[0] += 2
    assert directory.away_s("echo", "1234") == 42
    assert directory.away_s("echo", "another") is None


def test_a_runner_that_lives_and_is_not_linked_is_away_since_it_was_read_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = clocked(monkeypatch)
    runner = RunnerInfo("r1", "tcp://127.0.0.1:1", "default", {"echo": "1234"})
    directory = Directory(GatewayMetrics())
    alive = replace(READING, runners=[runner], last_seen={("echo", "1234"): 1.0})
    for _ in range(3):
        directory.update(alive)
        now[0] += 10
    assert directory.away_s("echo", "1234") == 30
    directory.update(replace(READING, last_seen={("echo", "1234"): 12.0}))  # it is lost
    assert directory.away_s("echo", "1234") == 12
    now[0] += 5000
    directory.update(alive)  # another one has come, and should be linked at once
    assert directory.away_s("echo", "1234") == 0
