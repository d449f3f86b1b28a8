"""Whose turn a free slot is while jobs may be waiting for it: a job's and a direct call's, one to one."""

from __future__ import annotations

import time
from collections import deque

from gpu_runner.calls import LocalCall


class Turns:
    """What a group of slots knows of the jobs that want them.

    A slot whose turn is a job's is kept free until the next claim has been answered, so that no direct call
    takes it meanwhile.
    """

    __slots__ = ("arrived", "asked", "contended", "filled", "is_jobs", "kept_since", "may_wait", "reserved")

    def __init__(self) -> None:
        self.contended = False
        """Whether jobs may be waiting or are on their way here: all that the direct path looks at."""
        self.may_wait = False
        """Whether there is a reason to claim."""
        self.reserved = 0
        """Free slots that are kept for jobs."""
        self.kept_since = 0.0
        """While there are any, since when, by `time.monotonic()`."""
        self.asked = 0
        """Those of them that the claim in flight is to fill."""
        self.filled = 0
        """Those of them that have been filled so far."""
        self.arrived: deque[LocalCall] = deque()
        """Jobs that were claimed and whose slot has been lost meanwhile."""
        self.is_jobs = True
        """Whether the next start is a job's, if both wait."""

    def hear(self) -> None:
        """Jobs may be waiting."""
        if not self.contended:
            self.is_jobs = True  # direct calls have had all turns so far
        self.may_wait = self.contended = True

    @property
    def are_wanted(self) -> bool:
        """Whether a free slot may yet be filled with a job that isn't here."""
        return self.may_wait or self.asked > 0

    def reserve(self) -> None:
        """Keep a free slot for a job."""
        if not self.reserved:
            self.kept_since = time.monotonic()
        self.reserved += 1
        self.is_jobs = False

    def ask(self) -> int:
        """How many jobs to claim now; what is heard from here on is a reason for another claim."""
        self.asked = self.reserved
        self.filled = 0
        if self.asked:
            self.may_wait = False
        return self.asked

    def fill(self) -> None:
        """A claimed job is here: what was kept for it is its own, or free if it can't start."""
        self.reserved = max(0, self.reserved - 1)
        self.filled += 1

    def arrive(self, call: LocalCall) -> None:
        """Let a claimed job wait, before all others, for the next slot that is a job's."""
        self.arrived.append(call)
        self.contended = True

    def answered(self, asked: int, got: int) -> None:
        """The claim is answered, and the jobs that it brought have taken their slots."""
        self.asked = 0
        self.reserved = max(0, self.reserved - (asked - got))
        if got >= asked:
            self.may_wait = True
        elif not self.may_wait:
            self.reserved = 0
        self.look()

    def let_go(self) -> None:
        """Give up what is kept: no answer is in sight."""
        self.may_wait = False
        self.reserved = self.asked = 0
        self.look()

    def look(self) -> None:
        """See whether the direct path is alone again."""
        self.contended = bool(self.may_wait or self.asked or self.reserved or self.arrived)
