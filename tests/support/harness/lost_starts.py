"""Whether the starts that a job was charged for were really lost, to a fault that the test has made."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from harness.ledger import alone_after
from harness.postgres import query
from harness.witness import Witness

UNCHARGED = 3
"""Starts that were lost through no fault of their own, at most."""
SLACK = timedelta(seconds=1)
"""A command that was on its way when its sender was killed is still obeyed."""
_PROCESS = "its process was lost"
_RUNNER = re.compile(r"runner (\S+) was lost|the lease of runner (\S+) ran out")
_UNCHARGED = ("given back", "its process was killed for another call")
_ENDS = (
    "SELECT e.attempt, s.at, e.at, e.reason FROM job_event e"
    " JOIN job_event s ON s.job_id = e.job_id AND s.attempt = e.attempt AND s.state = 'running'"
    " WHERE e.job_id = %s::uuid AND e.from_state = 'running' ORDER BY e.sequence"
)
_REQUEUES = (
    "SELECT job_id::text, attempt, reason FROM job_event WHERE from_state = 'running' AND state = 'queued'"
    " ORDER BY job_id, sequence"
)
_SOCKETS = "SELECT id::text, address FROM runner"


@dataclass(frozen=True)
class _Loss:
    name: str
    began: datetime
    ended: datetime

    def befell(self, started: datetime, lost: datetime) -> bool:
        """Whether it came upon a start that was lost at that instant."""
        return started <= self.ended + SLACK and self.began <= lost


@dataclass
class Losses:
    """What a test has killed, stopped and cut off, and when."""

    seen: Witness
    _runners: list[_Loss] = field(default_factory=list)
    _executors: dict[int, _Loss] = field(default_factory=dict)

    @contextlib.contextmanager
    def of_runners(self, *names: str) -> Iterator[None]:
        """Runners of these names are killed, stopped or cut off meanwhile."""
        began = _now()
        yield
        self._runners += [_Loss(name, began, _now()) for name in names]

    @contextlib.contextmanager
    def of_executor(self, pid: int) -> Iterator[None]:
        """The process is killed meanwhile."""
        began = _now()
        yield
        self._executors[pid] = _Loss("", began, _now())

    def of_killers(self, job_ids: Collection[str], seconds: float) -> None:
        """Take note of the processes that these jobs have killed, each so many seconds after its start."""
        ended = timedelta(seconds=seconds)
        for job_id in job_ids:
            for pid, at in self.seen.processes(job_id):
                self._executors[pid] = _Loss("", at, at + ended)

    def check(self, url: str, job_id: str, attempts: int) -> None:
        """Check that each start that a failed job was charged for was lost to one of these.

        Raises:
            AssertionError: one wasn't, or a start came to nothing for another reason.
        """
        sockets = dict[str, str](query(url, _SOCKETS))
        pids, ends = self.seen.pids(job_id), query(url, _ENDS, job_id)
        uncharged = sum(reason.startswith(_UNCHARGED) for *_, reason in ends)
        for attempt, started, lost, reason in ends:
            what = f"job {job_id}, attempt {attempt} from {started} to {lost}: {reason}"
            if reason.startswith(_PROCESS):
                # Where the function wrote nothing before it was lost, only the time tells.
                pid = pids.get(attempt)
                found = self._executors.values() if pid is None else [self._executors.get(pid)]
            elif gone := _RUNNER.match(reason):
                address = sockets[gone[1] or gone[2]]
                found = [loss for loss in self._runners if address.endswith(f"/{loss.name}.sock")]
            else:
                assert reason.startswith(_UNCHARGED), what
                continue
            assert any(loss is not None and loss.befell(started, lost) for loss in found), what
        assert len(ends) - uncharged + max(0, uncharged - UNCHARGED) == attempts, ends


def alone_starts(url: str) -> set[tuple[str, int]]:
    """The starts beside which nothing may have run, as an earlier one had ended with its process."""
    found: set[tuple[str, int]] = set()
    for job_id, attempt, reason in query(url, _REQUEUES):
        if alone_after(reason, (job_id, attempt) in found):
            found.add((job_id, attempt + 1))
    return found


def _now() -> datetime:
    return datetime.now(UTC)
