"""A call on its way through the runner, whichever path brought it: waiting, then running, then answered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Protocol

from gpu_runner.frames import Reported, Run, RunBatch, Streamed
from headrace.domain import Manifest
from headrace.link.frames import Answer, Call, Started

INTERRUPT_AFTER_S: Final = 0.25
"""So long has a body that was asked to end for doing so by itself, at its next `Call.check`."""


class Caller(Protocol):
    """Whoever brought a call and gets its answer: a gateway's session, or a job."""

    def answer(self, frame: Answer | Started) -> None:
        """Take what has become of the call; ignored by a gateway that is gone."""
        ...

    def tell(self, frame: Reported | Streamed) -> None:
        """Take how far a running call is, or an item of its stream."""
        ...


class Executor(Protocol):
    """Where a call runs."""

    def send(self, frame: object) -> None:
        """Send a frame to the executor; ignored when it has died."""
        ...

    def interrupt(self, call: LocalCall) -> None:
        """Have `CallStopped` raised in the call's body; may be repeated."""
        ...

    def kill(self, culprit: LocalCall | None = None) -> None:
        """End the executor, because of that call."""
        ...


class LocalCall:
    """A call and where it stands. All instants are `time.monotonic()`.

    Args:
        frame: the call as a gateway sends it; a claimed job is put into the same words.
        caller: who gets the answer.
        manifest: the function's.
    """

    __slots__ = (
        "alone",
        "announced",
        "caller",
        "deadline_at",
        "executor",
        "expected_s",
        "frame",
        "interrupt_at",
        "interrupts",
        "is_job",
        "is_replaced",
        "kill_at",
        "manifest",
        "received_at",
        "started_at",
        "stopped",
        "stopped_at",
        "wait_until",
    )

    def __init__(self, frame: Call, caller: Caller, manifest: Manifest) -> None:
        now = time.monotonic()
        self.frame = frame
        self.caller = caller
        self.manifest = manifest
        self.received_at = now
        self.deadline_at = now + frame.remaining_ms / 1000
        self.wait_until = now
        self.expected_s = 0.0
        self.alone = frame.alone
        self.started_at = 0.0
        self.interrupt_at = 0.0
        self.interrupts = 0
        self.kill_at = 0.0
        self.executor: Executor | None = None
        self.announced = False
        self.is_job = False
        self.is_replaced = False
        """Whether it was stopped as another start of it may follow, not as nobody wants it any more."""
        self.stopped = False
        self.stopped_at = 0.0

    @property
    def job_id(self) -> str:
        """The name of the call on every link."""
        return self.frame.job_id

    @property
    def parts(self) -> Sequence[LocalCall]:
        """Those who get an answer: itself, or what it was joined of."""
        return (self,)

    @property
    def size(self) -> int:
        """Bytes of input."""
        return len(self.frame.input)

    @property
    def hold_until(self) -> float:
        """When its connection is given up, or its deadline: waiting any longer is of no use."""
        return min(self.received_at + self.frame.wait_ms / 1000, self.deadline_at)

    def run(self) -> Run | RunBatch:
        """What its executor is told."""
        frame = self.frame
        return Run(
            frame.job_id,
            frame.function,
            frame.input,
            frame.attempt,
            self.manifest.budget.soft_limit,
            self.deadline_at,
            frame.credit,
        )

    def start(self, executor: Executor, patience_s: float) -> None:
        """Note the start, and when the call is interrupted and killed.

        At its hard limit a call is killed at once. At its deadline it is asked to end, and killed when it
        hasn't within the patience: callers choose short deadlines, and mustn't be able to make everybody wait
        for models to be loaded again, time after time. For the same reason a start that comes late has that
        patience too.
        """
        self.executor = executor
        now = self.started_at = time.monotonic()
        budget = self.manifest.budget
        end_at = max(self.deadline_at, now)
        self.interrupt_at = min(now + budget.soft_limit, end_at) + INTERRUPT_AFTER_S
        self.kill_at = min(now + budget.hard, end_at + patience_s)
        if self.stopped:  # it was handed ahead, and its executor may not know yet
            self._end_soon(now, patience_s)

    def stop(self, patience_s: float) -> None:
        """Note that the call is asked to end, with the same patience as at a deadline."""
        self.stopped_at = time.monotonic()
        self.stopped = True
        if self.started_at:
            self._end_soon(self.stopped_at, patience_s)

    def _end_soon(self, now: float, patience_s: float) -> None:
        self.interrupt_at = min(self.interrupt_at, now + INTERRUPT_AFTER_S)
        self.kill_at = min(self.kill_at, now + patience_s)

    @property
    def queue_ms(self) -> float:
        """How long the call waited here for its start."""
        return (self.started_at - self.received_at) * 1000
