"""Room for running calls, and the brief wait for it.

Synchronous functions of concurrency 1 share the executor's main thread, so they share slots; every other
function has slots of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from gpu_runner.calls import DirectCall
from headrace.sdk import Function

MAIN = "(main)"  # no function can be named so

_WEIGHT = 0.1  # of the newest execution in the running mean
_MAX_WAITING_BYTES = 64 * 2**20


class Slots:
    """The slots that some functions share, and the calls that wait for one of them.

    Args:
        name: of the group.
        per_executor: how many calls one executor may run at once.
    """

    def __init__(self, name: str, per_executor: int) -> None:
        self.name = name
        self.per_executor = per_executor
        self.running = 0
        self.ahead = 0
        self.waiting: deque[DirectCall] = deque()
        self._waiting_bytes = 0
        self._waiting_s = 0.0
        self._running_s = 0.0

    @property
    def load(self) -> int:
        """Calls that run or wait."""
        return self.running + self.ahead + len(self.waiting)

    def predicted_wait(self, executors: int) -> float:
        """Seconds until a call that came now would start, by the means of what is ahead of it."""
        return (self._waiting_s + self._running_s) / max(1, executors * self.per_executor)

    def has_memory_for(self, call: DirectCall) -> bool:
        """Whether the waiting inputs, this one included, stay within what may wait in memory."""
        return self._waiting_bytes + len(call.frame.input) <= _MAX_WAITING_BYTES

    def push(self, call: DirectCall) -> None:
        """Let a call wait."""
        self.waiting.append(call)
        self._waiting_bytes += len(call.frame.input)
        self._waiting_s += call.expected_s

    def pop(self) -> DirectCall:
        """The call that has waited longest."""
        call = self.waiting.popleft()
        self._left(call)
        return call

    def remove(self, call: DirectCall) -> None:
        """Take out a call that needn't wait any more."""
        self.waiting.remove(call)
        self._left(call)

    def wait_for_process(self) -> None:
        """Nothing is ready: the brief wait is no measure, so calls wait for it as long as they can."""
        for call in self.waiting:
            call.wait_until = call.hold_until

    def overdue(self, now: float) -> Iterator[DirectCall]:
        """Take out the calls that have waited as long as they may."""
        for call in [call for call in self.waiting if call.wait_until <= now]:
            self.remove(call)
            yield call

    def handed_ahead(self, call: DirectCall) -> None:
        """A call waits in an executor for the end of another."""
        self.ahead += 1
        self._running_s += call.expected_s

    def promoted(self) -> None:
        """A call that was handed ahead has started."""
        self.ahead -= 1
        self.running += 1

    def returned(self, call: DirectCall) -> None:
        """A call that was handed ahead never started; it is no longer counted."""
        self.ahead -= 1
        self._less(call)

    def push_back(self, call: DirectCall) -> None:
        """Let a call wait before all others."""
        self.waiting.appendleft(call)
        self._waiting_bytes += len(call.frame.input)
        self._waiting_s += call.expected_s

    def started(self, call: DirectCall) -> None:
        """A call has taken a slot."""
        self.running += 1
        self._running_s += call.expected_s

    def ended(self, call: DirectCall) -> None:
        """A call has given its slot back."""
        self.running -= 1
        self._less(call)

    def _less(self, call: DirectCall) -> None:
        busy = self.running + self.ahead
        self._running_s = self._running_s - call.expected_s if busy else 0.0

    def _left(self, call: DirectCall) -> None:
        self._waiting_bytes -= len(call.frame.input)
        self._waiting_s = 0.0 if not self.waiting else self._waiting_s - call.expected_s


class ServiceTime:
    """The running mean of a function's execution time, in seconds: 0 until something has run."""

    def __init__(self) -> None:
        self.mean = 0.0

    def observe(self, seconds: float) -> None:
        """Count one execution (an exponentially weighted mean)."""
        self.mean = seconds if self.mean == 0.0 else self.mean + _WEIGHT * (seconds - self.mean)


def group_of(function: Function[Any, Any]) -> tuple[str, int]:
    """The name and size, per executor, of the slots that a function runs in."""
    concurrency = function.manifest.concurrency
    if function.is_async or concurrency > 1:
        return function.name, concurrency
    return MAIN, 1


def slots_for(functions: Iterable[Function[Any, Any]]) -> dict[str, Slots]:
    """Slots by function name; functions that share the main thread share one `Slots`."""
    groups: dict[str, Slots] = {}
    by_function: dict[str, Slots] = {}
    for function in functions:
        name, size = group_of(function)
        by_function[function.name] = groups.setdefault(name, Slots(name, size))
    return by_function
