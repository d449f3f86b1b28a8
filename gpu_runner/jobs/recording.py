"""A direct call that is on its way into the ledger, and goes on running meanwhile."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Literal

from gpu_runner.calls import Caller, LocalCall
from gpu_runner.clock import boot_time
from gpu_runner.frames import Reported, Streamed
from gpu_runner.jobs.outcomes import EndedBy, outcome_of
from headrace.ledger.execution import Claimed, Outcome
from headrace.ledger.handover import HandedOver
from headrace.link.frames import Answer, Handover, Lost, Started

Sent = Literal["no", "in flight", "unknown"]
"""Whether the ledger may have the job: nothing was sent to it that may have taken effect; the first reply is
awaited; or a reply was lost, so that the job is there, or comes, or never does."""


class Recording:
    """One start of a call, from the handover's request until it is known what the ledger holds of it.

    It is the call's `Caller` meanwhile, so the gateway can't stop it any more, nor take it along when its
    link is lost. It keeps what the call says.

    Args:
        call: that runs, or will as soon as its executor has ended what is before it.
        asked: what the gateway has told for the ledger.
        on_answer: called once, when `reply` is there.
    """

    def __init__(self, call: LocalCall, asked: Handover, on_answer: Callable[[Recording], None]) -> None:
        self.call = call
        self.gateway: Caller = call.caller
        self.token = str(uuid.uuid4())
        self.since = boot_time()
        self.lease_until = 0.0
        """Until when the job is surely this runner's, if the ledger has it; on the clock of `boot_time`."""
        self.sent: Sent = "no"
        self.claim_id = ""
        """Of the transaction that it goes in; empty while it waits for one."""
        self.reply: Answer | None = None
        self.news: Reported | None = None
        self.ended_by: EndedBy = ""
        self.is_cancelled = False
        self.is_over = False
        """Whether it is known; what the call still says is of no use to anyone."""
        self._asked = asked
        self._on_answer = on_answer
        waited_s = call.queue_ms / 1000 if call.started_at else time.monotonic() - call.received_at
        if asked.accepted_ms:
            waited_s = asked.accepted_ms / 1000 - self._elapsed_s()
        self._waited_s = max(0.0, waited_s)
        call.caller = self
        call.is_job = True

    @property
    def job_id(self) -> str:
        """The call's id, and the job's."""
        return self.call.job_id

    @property
    def function(self) -> str:
        """The call's function."""
        return self.call.frame.function

    # ------------------------------------------------------------------ as the call's caller

    def answer(self, frame: Answer | Started) -> None:
        """Keep how the start has ended."""
        if self.reply is None and not self.is_over and not isinstance(frame, Started):
            self.reply = frame
            self._on_answer(self)

    def tell(self, frame: Reported | Streamed) -> None:
        """Keep how far the call is; its items stay in its output."""
        if isinstance(frame, Reported):
            self.news = frame

    # ------------------------------------------------------------------ in the ledger's words

    def handed_over(self) -> HandedOver:
        """What the ledger is asked to record, with the times of this moment."""
        call, asked, frame = self.call, self._asked, self.call.frame
        attempts = call.manifest.attempts
        return HandedOver(
            job_id=self.job_id,
            token=self.token,
            owner_id=frame.owner,
            function=frame.function,
            interface=frame.interface,
            input=frame.input,
            digest=asked.digest,
            cost=asked.cost or frame.cost,
            attempts=attempts,
            attempt=frame.attempt,
            charged=min(asked.charged + 1, attempts),
            waited_s=self._waited_s,
            elapsed_s=self._elapsed_s(),
            remaining_s=max(0.0, call.deadline_at - time.monotonic()),
            queue_s=asked.queue_s,
            key_id=asked.key_id or None,
            weight=asked.weight,
            request_id=frame.request_id,
            traceparent=frame.traceparent,
            alone=frame.alone,
        )

    def claimed(self) -> Claimed:
        """The job as if this runner had claimed it."""
        call, frame = self.call, self.call.frame
        return Claimed(
            job_id=self.job_id,
            token=self.token,
            attempt=frame.attempt,
            charged=min(self._asked.charged + 1, call.manifest.attempts),
            function=frame.function,
            input=frame.input,
            owner_id=frame.owner,
            remaining_s=max(0.0, call.deadline_at - time.monotonic()),
            waited_s=self._waited_s,
            request_id=frame.request_id,
            traceparent=frame.traceparent,
            alone=frame.alone,
        )

    def outcome(self) -> Outcome:
        """What its end says to the ledger."""
        assert self.reply is not None
        return outcome_of(self.claimed(), self.reply, self.ended_by)

    def lost(self) -> Lost:
        """What a gateway is told where the work came to nothing for want of a ledger."""
        return Lost(self.job_id, self.call.frame.attempt, charged=False, suspect=False)

    def _elapsed_s(self) -> float:
        """Seconds since the start; 0 for a call that was handed ahead and hasn't started."""
        return time.monotonic() - self.call.started_at if self.call.started_at else 0.0
