"""The benchmark of a call's cost: its clients count truly, and what can't be had is told."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

LOADTESTS = Path(__file__).resolve().parents[2] / "loadtests"


@pytest.fixture
def call_cost(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(LOADTESTS))
    return importlib.import_module("call_cost")


@pytest.fixture
def peers(call_cost: ModuleType) -> ModuleType:
    return importlib.import_module("peers")


def fake_wrk(folder: Path, monkeypatch: pytest.MonkeyPatch, prints: str) -> None:
    """A wrk that keeps its script, and prints that."""
    program = folder / "wrk"
    program.write_text(f"#!/bin/sh\ncp \"$7\" '{folder}/script'\necho '{prints}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_service_is_measured_by_the_answers_that_it_gave(
    call_cost: ModuleType, peers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_cost, "has_wrk", lambda: False)
    with peers.bare(call_cost.free_port(), call_cost.BODY) as service:
        seen = call_cost.measure(service, 2, 0.5)
        assert seen.rate > 0
        assert seen.cost_us > 0
        assert seen.errors == 0
        assert 0 < seen.p50_ms <= seen.p99_ms
    assert not service.root.is_running()


def test_what_wrk_reports_is_read(peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = peers.Service("ours", 1, "/fn/echo", psutil.Process(), "hr_secret")
    fake_wrk(tmp_path, monkeypatch, "RESULT 1000 7 2.000000 1.500 9.250")
    assert peers.wrk(service, b"{}", 16, 2.0) == peers.Load(1000, 7, 2.0, 1.5, 9.25)
    assert '"hr_secret"' in (tmp_path / "script").read_text()

    fake_wrk(tmp_path, monkeypatch, "unable to connect")
    with pytest.raises(OSError, match="unable to connect"):
        peers.wrk(service, b"{}", 16, 2.0)


def test_ratios_are_of_the_same_round(call_cost: ModuleType) -> None:
    def done(rate: float, errors: int = 0) -> Any:
        return call_cost.Round(200.0, rate, 1.0, 2.0, errors)

    rounds = [[done(1000), done(100)], [done(500), done(100, 3)], [done(800), done(100)]]
    ours, theirs = call_cost.summary(rounds, ["ours", "theirs"])
    assert "800 calls/s" in ours
    assert "times" not in ours
    assert "3 errors" in theirs
    assert "ours makes 8.00 times its calls/s (5.00 to 10.00)" in theirs


def test_a_peer_that_cannot_be_installed_is_told(
    peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path / "litserve")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(OSError, match="can't be installed here"), peers.litserve(1, b"{}"):
        pass
    assert not (tmp_path / "litserve" / ".ready").exists()
