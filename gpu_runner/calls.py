"""A direct call on its way through the runner: WAITING, then running (DIRECT), then answered."""

from __future__ import annotations

import time
from typing import Protocol

from headrace.domain import Manifest
from headrace.link.frames import Answer, Call, Started


class Caller(Protocol):
    """Whoever sent a call and gets its answer: a gateway's session."""

    def answer(self, frame: Answer | Started) -> None:
        """Send a frame to the gateway; ignored when it is gone."""
        ...


class Executor(Protocol):
    """Where a call runs."""

    def send(self, frame: object) -> None:
        """Send a frame to the executor; ignored when it has died."""
        ...


class DirectCall:
    """A call and where it stands. All instants are `time.monotonic()`.

    Args:
        frame: the call as the gateway sent it.
        caller: who gets the answer.
        manifest: the function's.
        brief_wait: the longest wait for a start while executors are busy, in seconds.
    """

    __slots__ = (
        "announced",
        "caller",
        "deadline_at",
        "executor",
        "expected_s",
        "frame",
        "kill_at",
        "manifest",
        "received_at",
        "started_at",
        "stopped",
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
        self.started_at = 0.0
        self.kill_at = 0.0
        self.executor: Executor | None = None
        self.announced = False
        self.stopped = False

    @property
    def job_id(self) -> str:
        """The name of the call on every link."""
        return self.frame.job_id

    @property
    def hold_until(self) -> float:
        """When its connection is given up: waiting any longer is of no use."""
        return self.received_at + self.frame.wait_ms / 1000

    def start(self, executor: Executor) -> None:
        """Note the start.

        At its deadline the call is asked to end; killed is it only at the function's hard limit. Callers
        choose short deadlines, and mustn't be able to make everybody wait for models to be loaded again.
        """
        self.executor = executor
        self.started_at = time.monotonic()
        self.kill_at = self.started_at + self.manifest.budget.hard

    @property
    def queue_ms(self) -> float:
        """How long the call waited here for its start."""
        return (self.started_at - self.received_at) * 1000
