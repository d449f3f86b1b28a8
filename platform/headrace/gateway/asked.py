"""One call on the direct path: what was asked, how it goes, and what it may become."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from headrace.admission import Predicted, Span
from headrace.domain import Manifest
from headrace.gateway import strict_json
from headrace.gateway.call_stream import CallStream
from headrace.gateway.digest import digest_of
from headrace.gateway.serving import Serving
from headrace.link import frames
from headrace.link.frames import Answer, Error, Handover, Refused, Result

Receive = Callable[[], Awaitable[Any]]
Reason = Literal["full", "cold", "withdrawn", "lost", "failed-for-now"]

_EXECUTED = (Result, Error)


class Handed(msgspec.Struct, frozen=True):
    """The call is a job in the ledger, which runs or has ended; its result will be there."""

    job_id: str


class ToJob(msgspec.Struct, frozen=True):
    """The call neither runs nor is it in the ledger as far as is known: it is to be submitted, under its id.

    Where it is there after all, as a runner that was lost has recorded it, the submission joins that job.

    Args:
        attempt: starts that it has had.
        charged: those among them that count against `attempts`.
        reason: why it isn't answered directly: no slot was free in time (`full`, or `cold`: while a process
            or model was loaded), it hadn't started when its hold ended (`withdrawn`), a start was `lost`
            with its process, runner or link, or ended with an error that may pass (`failed-for-now`).
        alone: a start ended with its process: nothing may run beside the next one.
    """

    attempt: int
    charged: int
    reason: Reason
    alone: bool = False


class Record(msgspec.Struct, frozen=True):
    """What the ledger is told of a call that becomes a job while it runs, and runners needn't know before.

    Args:
        key_id: of the API key that it came with.
        cost: of the input, by the function's declaration.
        weight: its share against other owners' jobs, should it have to wait again.
        queue_s: seconds from its acceptance within which its first start must come.
        place: its place in line, should it have to wait for a slot.
    """

    key_id: str
    cost: float
    weight: float
    queue_s: float
    place: str | None = None


class Asked(msgspec.Struct):
    """One call as the gateway accepted it.

    Args:
        manifest: the function's.
        input: the body, already checked.
        job_id: its name on every link.
        span: the time it gets.
        receive: the ASGI connection's, to see the client leave.
        stream: takes the call's items and its progress; None where nobody follows it.
        cost: the input's, where runners are to know it.
        alone: a start ended with its process: nothing may run beside the next one.
        may_be_job: its client takes a job for an answer.
        record: what the ledger needs, so that it can become a job while it runs; without it, it can't.
        most_outstanding: the bound of its owner's unfinished jobs, where that has one of its own.
        clear_s: seconds until none of its function's jobs should wait, as it was known at its arrival.
        jobs: those of its function that waited at its arrival.
        predicted: what it should take at the runner that got it last; None: nobody has looked.
        setback: why it isn't answered yet, as `ToJob` says.
        is_handed_over: a runner was asked to record it: it may be in the ledger, so it is sent to no other.
        is_withdrawn: that runner has let go of it instead, so it has recorded nothing.
    """

    job_id: str
    manifest: Manifest
    input: bytes
    owner_id: str
    request_id: str
    traceparent: str
    span: Span
    receive: Receive
    stream: CallStream | None = None
    cost: float = 0.0
    attempt: int = 1
    charged: int = 0
    uncharged: int = 0
    was_lost: bool = False
    alone: bool = False
    queue_ms: float = 0.0
    exec_ms: float = 0.0
    refusals: dict[Serving, Refused] = msgspec.field(default_factory=dict[Serving, Refused])
    may_be_job: bool = False
    record: Record | None = None
    most_outstanding: int | None = None
    clear_s: float = 0.0
    jobs: int = 0
    predicted: Predicted | None = None
    setback: Reason = "withdrawn"
    is_handed_over: bool = False
    is_withdrawn: bool = False

    @property
    def has_items(self) -> bool:
        """Whether the client may have got some of the output: then no other start can go on with it."""
        return self.stream is not None and self.stream.items > 0

    @property
    def starts(self) -> int:
        """How many starts have ended."""
        return self.charged + self.uncharged

    @property
    def may_be_handed(self) -> bool:
        """Whether it is to become a job when its hold ends while it runs.

        Not where it is followed, as a stream keeps its connection alive; nor where its deadline comes with
        the end of the hold, as nothing would be left of the job.
        """
        return (
            self.may_be_job
            and self.record is not None
            and self.stream is None
            and self.span.hold < self.span.total
        )

    @property
    def may_be_recorded(self) -> bool:
        """Whether the ledger may have it as a job, now or soon, as far as the gateway knows."""
        return self.is_handed_over and not self.is_withdrawn

    def digest(self) -> bytes:
        """SHA-256 of the input, whatever the order of its keys; made anew each time, from the body."""
        return digest_of(strict_json.decode(self.input))

    def handover(self, record: Record, elapsed_s: float) -> Handover:
        """What the runner that runs it is told, so that it can record it.

        Args:
            record: the call's.
            elapsed_s: seconds since its acceptance.
        """
        return Handover(
            self.job_id,
            record.key_id,
            self.digest(),
            record.cost,
            record.weight,
            record.queue_s,
            self.charged,
            elapsed_s * 1000,
        )

    def to_job(self, reason: Reason) -> ToJob:
        """It goes on as a job that waits for its next start."""
        return ToJob(self.starts, self.charged, reason, self.alone)

    def note(self, answer: Answer) -> None:
        """Keep what the last start tells of its times, and whether its runner has let go of it."""
        if isinstance(answer, _EXECUTED):
            self.queue_ms, self.exec_ms = answer.queue_ms, answer.exec_ms
        elif self.is_handed_over:
            has_let_go = isinstance(answer, frames.Handed) and answer.withdrawn
            self.is_withdrawn = has_let_go or isinstance(answer, Refused)

    def note_left(self) -> None:
        """Keep for how long a start has run that nobody waits for any more, where its stream tells."""
        if self.stream is not None and self.stream.began_at:
            self.exec_ms = (time.monotonic() - self.stream.began_at) * 1000
