"""A slot that is reserved for a function is taken by no other, so no other's long work delays it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, answered, eventually, site

AT_ONCE_S = 5.0  # on a busy machine; the long ones take as long as the test wants them to


@dataclass
class Work:
    """What functions note in one file, until another is there."""

    folder: Path
    name: str

    @property
    def input(self) -> dict[str, str]:
        return {"notes": str(self.folder / self.name), "until": str(self.folder / f"{self.name}-end")}

    def starts(self) -> int:
        return self._count("start")

    def most_at_once(self) -> int:
        running = most = 0
        for line in self._lines():
            running += 1 if line.startswith("start") else -1
            most = max(most, running)
        return most

    def end(self) -> None:
        (self.folder / f"{self.name}-end").touch()

    def _count(self, what: str) -> int:
        return sum(line.startswith(what) for line in self._lines())

    def _lines(self) -> list[str]:
        path = self.folder / self.name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    settings = {"HEADRACE_EXECUTORS": "2"}
    with clones.migrated() as url, site(url, functions="reserving_functions", settings=settings) as running:
        ready = "headrace_runner_executors_ready"
        eventually(lambda: running.metric(running["runner-0"], ready) == 2, "both executors are ready")
        yield running


@contextlib.contextmanager
def saturated(served: Site, work: Work) -> Iterator[list[str]]:
    """Jobs and direct calls of the long functions want more slots than there are; the ids of the jobs."""
    over = threading.Event()

    def call_again_and_again(name: str) -> None:
        while not over.is_set():
            served.call(name, work.input)

    callers = [threading.Thread(target=call_again_and_again, args=(name,)) for name in ("long", "also_long")]
    job_ids = [served.submit(name, work.input) for name in ("long", "also_long") * 3]
    eventually(lambda: work.starts() >= 1, "a long one runs")
    for caller in callers:
        caller.start()
    try:
        yield job_ids
    finally:
        over.set()
        work.end()
        for caller in callers:
            caller.join()
        for job_id in job_ids:
            assert served.final(job_id)["status"] == "succeeded"


def test_short_calls_are_answered_at_once_beside_long_ones(served: Site, tmp_path: Path) -> None:
    work = Work(tmp_path, "long")
    with saturated(served, work):
        for _ in range(10):
            response = served.call("short", {})
            assert response.status_code == 200
            assert response.elapsed.total_seconds() < AT_ONCE_S
        assert work.starts() == 1

    assert work.most_at_once() == 1


def test_short_jobs_are_too(served: Site, tmp_path: Path) -> None:
    work = Work(tmp_path, "long")
    with saturated(served, work):
        for _ in range(5):
            response = served.call("short", {}, Prefer="respond-async, wait=20")
            assert response.status_code == 200
            assert response.elapsed.total_seconds() < AT_ONCE_S
        assert work.starts() == 1

    assert work.most_at_once() == 1


def test_a_slot_that_a_short_one_leaves_is_not_taken_by_a_long_one(served: Site, tmp_path: Path) -> None:
    long, short = Work(tmp_path, "long"), Work(tmp_path, "short")
    with saturated(served, long):
        with served.calling(("short", short.input)) as (running,):
            eventually(lambda: short.starts() == 1, "it runs in the reserved slot")
            problem(served.call("short", {}, Headrace_Async="never"), 503, "busy")
            short.end()
        assert running.result().status_code == 200
        answered(lambda: served.call("short", {}), 200, within=AT_ONCE_S)
        assert long.starts() == 1

    assert long.most_at_once() == 1


def test_short_ones_may_use_free_slots_that_all_share(served: Site, tmp_path: Path) -> None:
    short, long = Work(tmp_path, "short"), Work(tmp_path, "long")
    with served.calling(("short", short.input), ("short", short.input)) as both:
        eventually(lambda: short.starts() == 2, "both slots are theirs")
        job_id = served.submit("long", long.input)
        problem(served.call("long", long.input, Headrace_Async="never"), 503, "busy")
        assert long.starts() == 0
        short.end()

    assert [answer.result().status_code for answer in both] == [200, 200]
    eventually(lambda: long.starts() == 1, "the slot that all share is free again")
    long.end()
    assert served.final(job_id)["status"] == "succeeded"


def test_short_jobs_may_use_them_as_well(served: Site, tmp_path: Path) -> None:
    short = Work(tmp_path, "short")
    job_ids = [served.submit("short", short.input) for _ in range(2)]
    eventually(lambda: short.starts() == 2, "both slots are theirs")
    short.end()

    assert [served.final(job_id)["status"] for job_id in job_ids] == ["succeeded"] * 2
