"""A lot: joined calls that wait for one slot, start once and are held to limits once.

To slots, turns and placing it is a call like any other. What becomes of it is told to each of its calls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from gpu_runner.calls import Caller, Executor, LocalCall
from gpu_runner.frames import BatchItem, Reported, RunBatch, Streamed
from headrace.domain import Manifest
from headrace.link.frames import Answer, Call, Started

MOST_CALLS: Final = 1024
"""Of one lot, however little they cost."""

MOST_BYTES: Final = 32 * 2**20
"""Of the inputs of one lot, which travel to the executor in one frame; a larger input goes by itself."""

_numbers = itertools.count(1)


class Joined(LocalCall):
    """A call of a batched function. `cost` is its input's, as the manifest prices it."""

    __slots__ = ("cost", "is_answered", "lot")

    def __init__(self, frame: Call, caller: Caller, manifest: Manifest) -> None:
        super().__init__(frame, caller, manifest)
        self.cost = frame.cost or _price(manifest, frame.input)
        self.lot: Lot | None = None
        self.is_answered = False
        """Whether its caller knows its end; the body may be at work on it still."""


def _price(manifest: Manifest, data: bytes) -> float:
    """The cost of an input that no gateway has priced: a job's."""
    try:
        return manifest.cost.of(msgspec.json.decode(data))
    except msgspec.DecodeError:
        return 0.0  # its executor says what is wrong with it


class Lot(LocalCall):
    """Calls of one function that run as one.

    Args:
        first: the call for which it is made.
    """

    __slots__ = (
        "_size",
        "callers",
        "calls",
        "cost",
        "has_succeeded",
        "has_waited",
        "is_open",
        "lingers_until",
        "may_come",
        "started_with",
    )

    def __init__(self, first: Joined) -> None:
        frame = first.frame
        name = f"lot-{next(_numbers)}"
        own = Call(name, frame.function, frame.interface, b"", "", 1, 0, frame.wait_ms, alone=frame.alone)
        super().__init__(own, self, first.manifest)
        self.calls: dict[str, Joined] = {}
        """Those that aren't settled, by job id, in the order in which they came."""
        self.cost = 0.0
        self.is_open = not frame.alone
        """Whether others may join it."""
        self.has_waited = False
        """Whether it had to wait for its slot."""
        self.lingers_until = 0.0
        """Since when at the latest it runs, where it has a slot and waits for others; 0: it doesn't."""
        self.may_come = 0
        """How many more calls it waits for then."""
        self.started_with = 0
        """How many calls it had when it started."""
        self.callers = 0
        """How many are through that were direct ones to the end: who is answered may call again."""
        self.has_succeeded = False
        """Whether any of its calls has: only then is its time one to expect of others."""
        self._size = 0
        self.add(first)

    @property
    def parts(self) -> Sequence[Joined]:
        """Its calls."""
        return tuple(self.calls.values())

    @property
    def size(self) -> int:
        """Bytes of all inputs."""
        return self._size

    @property
    def hold_until(self) -> float:
        """It waits for as long as it has calls."""
        return math.inf

    def has_room_for(self, call: Joined, max_cost: float) -> bool:
        """Whether the call may join, by cost, which is to stay within `max_cost`, number and bytes."""
        return (
            self.is_open
            and self.cost + call.cost <= max_cost
            and len(self.calls) < MOST_CALLS
            and self._size + call.size <= MOST_BYTES
        )

    def add(self, call: Joined) -> None:
        """Let a call join."""
        call.lot = self
        self.calls[call.job_id] = call
        self.deadline_at = max(self.deadline_at, call.deadline_at)
        self.cost += call.cost
        self._size += call.size

    def drop(self, call: Joined) -> None:
        """Leave out a call before the start."""
        del self.calls[call.job_id]
        call.lot = None
        self.cost = self.cost - call.cost if self.calls else 0.0
        self._size -= call.size

    def settle(self, call: Joined) -> None:
        """One of the calls of the running lot is through."""
        del self.calls[call.job_id]
        self.callers += not call.is_job

    @property
    def is_wanted(self) -> bool:
        """Whether the end of any of its calls is still waited for."""
        return any(not (call.stopped or call.is_answered) for call in self.calls.values())

    def is_to_blame(self, call: Joined) -> bool:
        """Whether one of its calls is the reason, where the executor was killed for the lot."""
        return self.started_with == 1 or call.stopped

    def run(self) -> RunBatch:
        """What its executor is told."""
        items = tuple(
            BatchItem(call.job_id, call.frame.input, call.frame.attempt, call.deadline_at)
            for call in self.calls.values()
        )
        return RunBatch(self.job_id, self.frame.function, items, self.manifest.budget.soft_limit)

    def start(self, executor: Executor, patience_s: float) -> None:
        """Note the start of all; the lot is interrupted and killed as the last of its calls would be."""
        self.is_open = False
        self.started_with = len(self.calls)
        self.deadline_at = max(call.deadline_at for call in self.calls.values())
        super().start(executor, patience_s)
        for call in self.calls.values():
            call.start(executor, patience_s)

    def late(self, now: float) -> list[Joined]:
        """Its calls whose deadlines have passed, and who don't know yet."""
        return [call for call in self.calls.values() if call.deadline_at <= now and not call.is_answered]

    # ------------------------------------------------------------------ as its own caller

    def answer(self, frame: Answer | Started) -> None:
        """It runs: its calls are announced. Their answers come one by one."""
        for call in self.calls.values():
            if not call.announced and not call.is_answered:
                call.announced = True
                call.caller.answer(Started(call.job_id, call.frame.attempt))

    def tell(self, frame: Reported | Streamed) -> None:
        """Nothing is told of it as a whole."""
