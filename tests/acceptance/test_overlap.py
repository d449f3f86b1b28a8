"""A slot is taken until the work in it has ended: executions never overlap, whatever ends them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from harness.postgres import Clones
from harness.site import NotInTimeError, Site, eventually, site
from overlap_functions import How

from headrace.domain import FINAL

MIXTURE: dict[How, int] = {"ends": 20, "checks": 2, "sleeps": 2, "is_deaf": 1, "holds": 1, "exits": 1}
CANCELLED = 4
CALLERS = 6
_FINAL_S = 120.0


@dataclass
class Execution:
    """A start and, unless its process was killed, the end."""

    name: str
    pid: int
    alive: list[int]
    """The other processes of the function that were there when it started."""
    has_ended: bool = False


@dataclass
class Notes:
    """What the function has noted, in order."""

    path: Path
    executions: list[Execution] = field(default_factory=list[Execution])

    def read(self) -> None:
        """Read it all; an end must be that of the newest start in its process."""
        self.executions = []
        running: dict[int, Execution] = {}
        for line in self.path.read_text().splitlines():
            what, name, pid, *rest = line.split()
            if what == "start":
                alive = [int(one) for one in rest[0].split(",")] if rest else []
                # In one process an execution begins only when the one before has ended.
                assert int(pid) not in running, line
                running[int(pid)] = Execution(name, int(pid), alive)
                self.executions.append(running[int(pid)])
            else:
                execution = running.pop(int(pid))
                assert execution.name == name
                execution.has_ended = True

    def has_started(self, number: int) -> bool:
        return self.path.exists() and f"start {number}/" in self.path.read_text()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("executors", "times"),
    [(1, 1), pytest.param(1, 4, marks=pytest.mark.slow), pytest.param(2, 4, marks=pytest.mark.slow)],
)
def test_executions_never_overlap(clones: Clones, tmp_path: Path, executors: int, times: int) -> None:
    mixture = {how: count * times for how, count in MIXTURE.items()}
    settings = {"HEADRACE_EXECUTORS": str(executors)}
    notes = Notes(tmp_path / "notes")
    notes.path.touch()
    with clones.migrated() as url, site(url, functions="overlap_functions", settings=settings) as served:
        outcomes = all_done(served, notes, mixture)
    notes.read()

    # At concurrency 1, processes that execute at once are processes that are there at once: each start has
    # looked for the others, and a process whose execution has no end must be gone.
    assert max(len(execution.alive) for execution in notes.executions) == executors - 1
    killed = {execution.pid for execution in notes.executions if not execution.has_ended}
    assert len(killed) >= mixture["is_deaf"] + mixture["holds"] + mixture["exits"]
    assert sum(outcomes.values()) == sum(mixture.values()) + CANCELLED
    assert outcomes["succeeded"] == mixture["ends"]
    assert outcomes["soft-limit-exceeded"] == mixture["checks"] + mixture["sleeps"]
    assert outcomes["hard-limit-exceeded"] == mixture["is_deaf"] + mixture["holds"]
    assert outcomes["attempts-exhausted"] + outcomes["worker-lost"] == mixture["exits"]
    assert outcomes["job-cancelled"] == CANCELLED


def all_done(served: Site, notes: Notes, mixture: Mapping[How, int]) -> Counter[str]:
    """Run the mixture, half of it as jobs and half as direct calls, and so many jobs that are cancelled."""
    order = random.Random(5)
    hows = [how for how, count in mixture.items() for _ in range(count)]
    order.shuffle(hows)
    works = [{"how": how, "number": number, "path": str(notes.path)} for number, how in enumerate(hows)]
    doomed = [
        {"how": how, "number": len(works) + number, "path": str(notes.path)}
        for number, how in enumerate(["sleeps", "is_deaf", "checks", "sleeps"] * (CANCELLED // 4))
    ]
    with ThreadPoolExecutor(CALLERS + 2) as threads:
        cancelled = threads.submit(cancel_all, served, notes, doomed)
        jobs = threads.submit(submit_all, served, works[::2])
        called = threads.map(lambda work: call(served, work), works[1::2])
        outcomes = Counter(called)
        outcomes.update(outcome(served, job_id) for job_id in jobs.result() + cancelled.result())
    return outcomes


def submit_all(served: Site, works: Sequence[dict[str, object]]) -> list[str]:
    return [served.submit("lonely", work) for work in works]


def call(served: Site, work: dict[str, object]) -> str:
    """Call directly, again as long as there is no room; returns the outcome in a word."""

    def look() -> httpx2.Response | None:
        response = served.call("lonely", work, Headrace_Async="never")
        return None if response.status_code == 503 else response

    response = eventually(look, "there is room", within=_FINAL_S)
    return "succeeded" if response.status_code == 200 else response.json()["code"]


def cancel_all(served: Site, notes: Notes, works: Sequence[dict[str, object]]) -> list[str]:
    """Cancel jobs one by one, each as soon as it runs."""
    job_ids: list[str] = []
    for work in works:
        job_ids.append(served.submit("lonely", work, Headrace_Priority="high"))
        number = int(str(work["number"]))
        eventually(lambda: notes.has_started(number), "it runs", within=_FINAL_S)  # noqa: B023
        served.post(f"/jobs/{job_ids[-1]}/cancel", b"")
        outcome(served, job_ids[-1])
    return job_ids


def outcome(served: Site, job_id: str) -> str:
    """How a job has ended, in a word."""
    ends_at = time.monotonic() + _FINAL_S
    while (job := served.get(f"/jobs/{job_id}", Prefer="wait=5").json())["status"] not in FINAL:
        if time.monotonic() > ends_at:
            raise NotInTimeError(f"job {job_id} isn't final")
    return "succeeded" if job["status"] == "succeeded" else job["error"]["category"]
