"""One call that is to be a job: what the ledger is given, how it is answered, and how it went."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.ledger.reading import Job
from headrace.ledger.submission import NewJob


@dataclass(slots=True)
class JobCall:
    """A call that is to be a job, and how it went.

    Args:
        new: what the ledger is given.
        hold: how long its client waits for the end.
        queue_budget: seconds within which a runner of the function must have been seen.
        is_async: it is answered with the job where it isn't waited for, final or not.
        takes_job: its client takes the job for an answer at all.
        reason: why a call that asked for no job becomes one; empty where it did ask.
        may_be_recorded: a runner was asked to record it, and may have done so.
        joined: the job that its idempotency key stands for, where that is another call's.
    """

    new: NewJob
    hold: float
    queue_budget: float
    is_async: bool
    takes_job: bool = True
    reason: str = ""
    may_be_recorded: bool = False
    joined: str | None = None
    attempt: int = 0
    queue_ms: float = 0.0
    exec_ms: float = 0.0

    @property
    def job_id(self) -> str:
        """The id of the job that stands for it."""
        return self.joined or self.new.job_id

    def forget_input(self) -> None:
        """Its job is in the ledger, and a wait for it may be long: many large inputs would pile up."""
        self.new = msgspec.structs.replace(self.new, input=b"")

    def note(self, job: Job) -> None:
        """Keep what the ledger tells of its times."""
        self.attempt = job.attempt
        self.queue_ms, self.exec_ms = job.waited_s * 1000, job.execution_s * 1000
