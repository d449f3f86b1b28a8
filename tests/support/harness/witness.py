"""A table in which functions write what they do: what was really executed, whatever the ledger says.

`witness_functions` writes it, on a database that stays when the site's own goes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.postgres import query

_TABLE = """
CREATE TABLE witness (
    id bigint GENERATED ALWAYS AS IDENTITY,
    job_id uuid NOT NULL,
    attempt integer NOT NULL,
    pid integer NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    what text NOT NULL
)
"""
_TOGETHER = """
WITH start AS (
    SELECT s.job_id, s.attempt, s.pid, s.at, e.at AS until FROM witness s
    LEFT JOIN witness e ON e.job_id = s.job_id AND e.attempt = s.attempt AND e.pid = s.pid AND e.what = 'end'
    WHERE s.what = 'start')
SELECT a.job_id::text, a.attempt, b.job_id::text, b.attempt FROM start a JOIN start b
    ON b.pid = a.pid AND b.job_id <> a.job_id AND b.at BETWEEN a.at AND a.until
"""


@dataclass(frozen=True)
class Witness:
    """What was written in one database's table."""

    url: str

    def input(self, seconds: float = 0, number: int = 0) -> dict[str, Any]:
        """The input of a function that is to be witnessed here."""
        return {"url": self.url, "seconds": seconds, "number": number}

    def starts(self) -> Counter[str]:
        """How often each job was started."""
        rows = query(self.url, "SELECT job_id::text FROM witness WHERE what = 'start'")
        return Counter(job_id for (job_id,) in rows)

    def ends(self) -> Counter[str]:
        """How often each job got to its end."""
        rows = query(self.url, "SELECT job_id::text FROM witness WHERE what = 'end'")
        return Counter(job_id for (job_id,) in rows)

    def started(self, number: int) -> bool:
        """Whether so many starts were written, of whatever job."""
        return self.starts().total() >= number

    def attempts(self, job_id: str) -> list[tuple[int, str]]:
        """What was written of one job, in order: attempt and event."""
        statement = "SELECT attempt, what FROM witness WHERE job_id = %s::uuid ORDER BY id"
        return query(self.url, statement, job_id)

    def together(self) -> set[tuple[str, int]]:
        """The starts, by job and attempt, that surely ran beside another in one process."""
        rows = query(self.url, _TOGETHER)
        return {start for one, its, other, others in rows for start in ((one, its), (other, others))}

    def after_first_starts(self) -> list[tuple[str, str]]:
        """What was written by starts that weren't the first, in order: job and event."""
        return query(self.url, "SELECT job_id::text, what FROM witness WHERE attempt > 1 ORDER BY id")

    def pids(self, job_id: str) -> dict[int, int]:
        """The processes that started it, by attempt."""
        statement = "SELECT attempt, pid FROM witness WHERE job_id = %s::uuid AND what = 'start'"
        return dict(query(self.url, statement, job_id))

    def processes(self, job_id: str | None = None) -> list[tuple[int, datetime]]:
        """The processes that started a job, or any, and when."""
        statement = "SELECT pid, at FROM witness WHERE what = 'start' AND job_id = coalesce(%s::uuid, job_id)"
        return query(self.url, statement, job_id)

    def pid(self, job_id: str) -> int:
        """The process that started it last."""
        statement = "SELECT pid FROM witness WHERE job_id = %s::uuid ORDER BY id DESC LIMIT 1"
        return query(self.url, statement, job_id)[0][0]


def witness(url: str) -> Witness:
    """A new witness in an empty database."""
    query(url, _TABLE)
    return Witness(url)
