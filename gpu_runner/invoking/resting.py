"""Running calls that wait for what they have called: they have no slot meanwhile.

Else one slot would be enough for a deadlock: two functions that call each other, from different chains, or
one that needs the device which its caller has. So a call *rests* from its first question on, and takes a slot
of its executor again before it gets the last answer; answers that come while others are awaited are given at
once, so what a body does between its first question and its last answer takes no slot. A call for which an
executor was closed opens it when it rests, since what it waits for may have to run there; it stays open.

Whoever asks rests, always: one that kept its slot could keep those from running for whom it waits, or others
do. So that not too many rest, no more of a function start where many of it do. Those that it calls are other
functions, so they start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gpu_runner.calls import LocalCall
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.slots import Slots

MOST: Final = 100
"""Calls of a function that rest in an executor, each with what its body holds: then no more of it start."""


def is_full(executor: ExecutorProcess, room: str) -> bool:
    """Whether so many rest in an executor that no more start there, of those that run in a room.

    Only bodies that are async ask, and each of their functions has a room of its own, which has its name.
    """
    resting = executor.resting
    if len(resting) < MOST:
        return False
    return sum(executor.calls[name].frame.function == room for name in resting) >= MOST


class _Woken(NamedTuple):
    """A call whose last answer is here, and waits for a slot."""

    call: LocalCall
    executor: ExecutorProcess
    deliver: Callable[[], None]


class Resting:
    """Takes slots from calls that wait, and gives them back.

    Args:
        executors: the runner's.
        slots: by function.
        is_below_cap: whether one more call of these slots may use the device.
        on_freed: called when a slot has been freed.
    """

    def __init__(
        self,
        executors: Sequence[ExecutorProcess],
        slots: Mapping[str, Slots],
        is_below_cap: Callable[[Slots], bool],
        on_freed: Callable[[ExecutorProcess, Slots], None],
    ) -> None:
        self.woken: list[_Woken] = []
        """Those that wait for a slot to go on, in the order in which they were woken."""
        self._executors = executors
        self._slots = slots
        self._is_below_cap = is_below_cap
        self._on_freed = on_freed
        self.open: dict[str, int] = {}
        """By the name of a call that waits, for how many answers."""

    def asked(self, call: LocalCall, executor: ExecutorProcess) -> None:
        """A running call waits for one more answer."""
        name = call.job_id
        self.open[name] = self.open.get(name, 0) + 1
        if self.open[name] > 1:
            self._deliver_early(call)
        else:
            slots = self._slots[call.frame.function]
            executor.resting.add(name)
            executor.busy[slots.room.name] -= 1
            slots.ended(call)
            self._on_freed(executor, slots)

    def answered(self, call: LocalCall, executor: ExecutorProcess, deliver: Callable[[], None]) -> None:
        """An answer is here: deliver it, if it is the last one when the call has a slot again."""
        if self.open.get(call.job_id, 0) > 1 or call.job_id not in executor.resting:
            self._less(call)
            deliver()
            return
        self.woken.append(_Woken(call, executor, deliver))
        self.look()

    def gave_up(self, call: LocalCall, executor: ExecutorProcess) -> None:
        """The body goes on without waiting for an answer; with a slot, if there is one or not."""
        self.woken = [one for one in self.woken if one.call is not call]  # it was there just now
        if self.open.get(call.job_id, 0) == 1:
            self._take_slot(call, executor)
        self._less(call)

    def look(self) -> None:
        """Let those go on for whom there is a slot."""
        for one in list(self.woken):
            slots = self._slots[one.call.frame.function]
            has_slot = one.executor.busy[slots.room.name] < slots.per_executor
            if has_slot and one.executor.closed_for is None and self._is_below_cap(slots):
                self.woken.remove(one)
                self._take_slot(one.call, one.executor)
                self._less(one.call)
                one.deliver()

    def left(self, call: LocalCall, executor: ExecutorProcess) -> bool:
        """A call has ended; returns whether it was resting, so that it leaves no slot."""
        self.open.pop(call.job_id, None)
        self.woken = [one for one in self.woken if one.call is not call]
        if call.job_id not in executor.resting:
            return False
        executor.resting.remove(call.job_id)
        return True

    def _deliver_early(self, call: LocalCall) -> None:
        """Its last answer isn't the last any more, as another branch of its body has asked meanwhile."""
        for one in [one for one in self.woken if one.call is call]:
            self.woken.remove(one)
            self._less(call)
            one.deliver()

    def _take_slot(self, call: LocalCall, executor: ExecutorProcess) -> None:
        if call.job_id not in executor.resting:
            return  # it has one
        slots = self._slots[call.frame.function]
        executor.resting.remove(call.job_id)
        executor.busy[slots.room.name] += 1
        slots.started(call)

    def _less(self, call: LocalCall) -> None:
        left = self.open.get(call.job_id, 0) - 1
        if left > 0:
            self.open[call.job_id] = left
        else:
            self.open.pop(call.job_id, None)
