"""One call that is to be a job: what the ledger is given, how it is answered, and how it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from headrace.admission import Predicted, ends_within
from headrace.ledger.reading import Job
from headrace.ledger.submission import NewJob, Receipt

_ACCEPTED: Final = frozenset({"accepted", "replayed"})


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
        predicted: what it should take, as runners tell; None: none of them is linked that could run it.
        receipt: what the ledger said to it, also where that was no.
        unstarted_s: how long it had waited at least, without a start, when its client stopped waiting.
    """

    new: NewJob
    hold: float
    queue_budget: float
    is_async: bool
    takes_job: bool = True
    reason: str = ""
    may_be_recorded: bool = False
    joined: str | None = None
    predicted: Predicted | None = None
    receipt: Receipt | None = None
    unstarted_s: float = 0.0
    attempt: int = 0
    queue_ms: float = 0.0
    exec_ms: float = 0.0

    @property
    def job_id(self) -> str:
        """The id of the job that stands for it."""
        return self.joined or self.new.job_id

    @property
    def is_accepted(self) -> bool:
        """Whether it is known to be in the ledger."""
        return self.receipt is not None and self.receipt.outcome in _ACCEPTED

    @property
    def place(self) -> Literal["", "given", "used"]:
        """Whether it was refused with a place in line, or has used one; for the access line."""
        if self.receipt is None:
            return ""
        if self.receipt.place is not None:
            return "given"
        return "used" if self.receipt.is_placed else ""

    def may_end_within(self, hold: float) -> bool:
        """Whether waiting for its end, for so many seconds, may be of use: else it is answered 202 at once.

        Whoever has said how long to wait for a job (`respond-async, wait=N`), or takes none, is waited with.
        """
        if self.is_async or not self.takes_job or self.receipt is None:
            return True
        return ends_within(hold, self.receipt.wait_s, self.predicted)

    def forget_input(self) -> None:
        """Its job is in the ledger, and a wait for it may be long: many large inputs would pile up."""
        self.new = msgspec.structs.replace(self.new, input=b"")

    def note(self, job: Job) -> None:
        """Keep what the ledger tells of its times."""
        self.attempt = job.attempt
        self.queue_ms, self.exec_ms = job.waited_s * 1000, job.execution_s * 1000
