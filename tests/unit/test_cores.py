from __future__ import annotations

import os

import pytest

from headrace.cores import crowded, threads_each


@pytest.mark.parametrize(
    ("cores", "executors", "threads", "warned"),
    [(8, 1, 8, False), (8, 3, 2, False), (8, 8, 1, False), (8, 9, 1, True), (1, 2, 1, True)],
)
def test_executors_and_their_threads_fit_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, executors: int, threads: int, *, warned: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert threads_each(executors) == threads
    assert bool(crowded(executors)) is warned


def test_the_warning_says_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert crowded(4).startswith("4 executors on 2 cores: functions that compute in torch or numpy get slow")
