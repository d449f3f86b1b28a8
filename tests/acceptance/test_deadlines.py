"""Each layer of a budget ends what the layer inside it didn't, and all ends in time.

The budgets are those of the example in docs/functions.md, queue 120, soft 135, hard 150 and margin 15 s, in a
time that runs 60 times as fast.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import layered_functions
import pytest
from harness.postgres import Clones, query
from harness.site import Site, eventually, site

SECOND = timedelta(seconds=1)
MACHINE = SECOND
"""What a busy machine may add to an end."""
MARGIN = 0.3 * SECOND
"""What may pass from a deadline to the end that the ledger has on record."""

_ROW = "SELECT state, finished_at - queue_deadline_at, attempt FROM job WHERE id = %s::uuid"


@dataclass
class Work:
    """What the function is given, and what it has left behind."""

    folder: Path

    def input(self, until: str = "never") -> dict[str, str]:
        return {"notes": str(self.folder / "notes"), "until": str(self.folder / until)}

    def end(self, until: str) -> None:
        (self.folder / until).touch()

    def starts(self, job_id: str) -> int:
        notes = self.folder / "notes"
        return notes.read_text().split().count(job_id) if notes.exists() else 0


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="layered_functions") as running:
        yield running


@pytest.fixture
def work(served: Site, tmp_path: Path) -> Iterator[Work]:
    if served["runner-0"].has_ended():
        served.start_runner("runner-0")
        served.wait_ready()
    yield Work(tmp_path)
    (tmp_path / "never").touch()
    states = "SELECT count(*) FROM job WHERE finished_at IS NULL"
    eventually(lambda: query(served.database_url, states) == [(0,)], "all jobs are final")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def settled(served: Site, job_id: str) -> tuple[str, timedelta, int]:
    """State, time after the queue deadline, and attempt of a job that is final, though nobody asked for it.

    Asking would have expired it.
    """

    def look() -> list[Any]:
        return [row for row in query(served.database_url, _ROW, job_id) if row[1] is not None]

    return eventually(look, "the job is final")[0]


def test_the_whole_ends_within_its_budgets(served: Site, work: Work) -> None:
    budget = layered_functions.BUDGET
    assert (budget.queue, budget.soft, budget.hard, budget.margin) == (120 / 60, 135 / 60, 150 / 60, 15 / 60)
    first = served.submit("deaf", work.input("released"))
    eventually(lambda: work.starts(first) == 1, "the only slot is taken")
    job = served.call("deaf", work.input(), Prefer="respond-async").json()
    shortly_before = moment(job["queue_deadline"]) - 0.8 * SECOND
    time.sleep((shortly_before - datetime.now(UTC)).total_seconds())  # to that instant: nothing happens then
    assert work.starts(job["job_id"]) == 0
    work.end("released")

    ended = served.final(job["job_id"])
    created, queue_deadline, deadline, started, finished = (
        moment(ended[name])
        for name in ("created_at", "queue_deadline", "deadline", "started_at", "finished_at")
    )
    assert queue_deadline - created == 120 * SECOND / 60
    assert deadline - created == (120 + 150 + 15) * SECOND / 60
    assert shortly_before <= started <= queue_deadline
    # The hard limit is the first to end it, a margin and 0.8 s before the deadline would.
    assert (ended["status"], ended["attempt"]) == ("failed", 1)
    assert ended["error"]["category"] == "hard-limit-exceeded"
    assert started + 150 * SECOND / 60 <= finished <= deadline + MARGIN
    assert work.starts(job["job_id"]) == 1
    assert served.job(first)["status"] == "succeeded"

    after = served.submit("deaf", work.input("released"))  # the process was killed, and is there again
    assert served.final(after)["status"] == "succeeded"


def test_what_is_not_started_in_time_expires_while_its_runner_is_busy(served: Site, work: Work) -> None:
    first = served.submit("deaf", work.input("released"))
    eventually(lambda: work.starts(first) == 1, "the only slot is taken")
    job_id = served.submit("deaf", work.input())

    state, late, attempt = settled(served, job_id)
    assert (state, attempt) == ("expired", 0)
    assert timedelta(0) <= late < SECOND
    work.end("released")
    served.final(first)
    assert work.starts(job_id) == 0


def test_what_is_not_started_in_time_expires_with_no_runner_alive(served: Site, work: Work) -> None:
    served["runner-0"].kill()
    job_id = served.submit("deaf", work.input())

    state, late, attempt = settled(served, job_id)
    assert (state, attempt) == ("expired", 0)
    assert timedelta(0) <= late < SECOND
    assert served.job(job_id)["error"]["category"] == "queue-deadline-exceeded"
    events = "SELECT state FROM job_event WHERE job_id = %s::uuid ORDER BY sequence"
    assert query(served.database_url, events, job_id) == [("queued",), ("expired",)]
    assert work.starts(job_id) == 0


def test_a_deadline_of_the_callers_shortens_a_job_that_runs(served: Site, work: Work) -> None:
    job_id = served.submit("deaf", work.input(), Headrace_Deadline="1")
    eventually(lambda: work.starts(job_id) == 1, "it runs")

    ended = served.final(job_id)
    assert (ended["status"], ended["error"]["category"]) == ("failed", "deadline-exceeded")
    assert moment(ended["deadline"]) - moment(ended["created_at"]) == SECOND
    assert SECOND <= moment(ended["finished_at"]) - moment(ended["created_at"]) < SECOND + MACHINE
