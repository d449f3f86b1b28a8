"""Executors times threads fit the cores, whoever imports what computes."""

from __future__ import annotations

import os
import sys
from multiprocessing import forkserver
from types import SimpleNamespace

import pytest
from child import child

from gpu_runner.children import executors
from gpu_runner.executor.device import THREAD_VARIABLES, limit_threads, set_thread_variables


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set, and nothing stays set."""
    for name in (*THREAD_VARIABLES, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def limits() -> dict[str, str]:
    return {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}


@pytest.mark.parametrize(("had", "has"), [(8, 3), (3, 3), (1, 1)])
def test_torch_gets_no_more_threads_and_keeps_fewer(
    monkeypatch: pytest.MonkeyPatch, had: int, has: int
) -> None:
    threads = [had]
    torch = SimpleNamespace(get_num_threads=lambda: threads[-1], set_num_threads=threads.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    limit_threads(3)
    assert threads[-1] == has


def test_libraries_that_are_loaded_later_find_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    limit_threads(3)
    assert limits() == {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3", "MKL_NUM_THREADS": "5"}


def test_the_fork_server_imports_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors.FAMILY, "ensure_server", lambda: None)
    executors.start_fork_server(())
    assert limits() == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    executors.start_fork_server((), 3)
    assert limits() == {"OMP_NUM_THREADS": "5", "OPENBLAS_NUM_THREADS": "5", "MKL_NUM_THREADS": "5"}


def test_threads_that_wait_spin_for_a_short_time_unless_the_operator_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    set_thread_variables(2)
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    set_thread_variables(2)
    assert os.environ["GOMP_SPINCOUNT"] == "10000"


def test_torch_imported_by_a_loader_is_limited_while_it_loads_and_afterwards() -> None:
    # One that an earlier test has started has the environment of that time.
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    with child("threaded_functions", threads=1) as executor:
        assert executor.value("threads") == {"while it loads": 1, "in a body": 1}
