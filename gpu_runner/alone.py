"""Calls that run with nothing beside them.

When an executor is lost with several calls in it, any of them may be the reason. Each that may start again
does so in an executor that is closed to all others, so a call that kills its process kills only itself. One
executor at most is closed at a time: the others go on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from gpu_runner.calls import LocalCall
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.slots import Slots


class Alone:
    """Those that wait for an executor of their own.

    Args:
        executors: the runner's; the list may grow.
        start: starts a call in an executor.
        may_close: whether other calls can do without that executor for a while.
        may_start: whether a call of these slots may start, wherever it is.
    """

    def __init__(
        self,
        executors: Sequence[ExecutorProcess],
        start: Callable[[LocalCall, Slots, ExecutorProcess], None],
        may_close: Callable[[ExecutorProcess, Slots], bool],
        may_start: Callable[[Slots], bool],
    ) -> None:
        self._executors = executors
        self._start = start
        self._may_close = may_close
        self._may_start = may_start
        self._waiting: deque[tuple[LocalCall, Slots]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[LocalCall]:
        return iter([call for call, _ in self._waiting])

    @property
    def is_idle(self) -> bool:
        """Whether none waits or runs, so that one more could start next."""
        return not self._waiting and all(one.closed_for is None for one in self._executors)

    def add(self, call: LocalCall, slots: Slots) -> None:
        """Let a call wait until an executor is empty."""
        self._waiting.append((call, slots))
        self.look()

    def drop(self, call: LocalCall) -> bool:
        """Forget a call that waits; returns whether it did. Its executor is open again."""
        for waiting in self._waiting:
            if waiting[0] is call:
                self._waiting.remove(waiting)
                self._reopen(call)
                return True
        return False

    def _reopen(self, call: LocalCall) -> None:
        for executor in self._executors:
            if executor.closed_for is call:
                executor.closed_for = None

    def running(self, executor: ExecutorProcess) -> LocalCall | None:
        """The call that an executor was closed for, if it runs there by now."""
        call = executor.closed_for
        return call if call is not None and executor.calls.get(call.job_id) is call else None

    def ended(self, executor: ExecutorProcess) -> bool:
        """Whether the call that an executor was closed for has ended, so that it is open again."""
        call = executor.closed_for
        if call is None or call.executor is not executor or call.job_id in executor.calls:
            return False
        executor.closed_for = None
        return True

    def look(self) -> bool:
        """Close an executor for the first call for which one can be; start it once the executor is empty.

        Returns:
            Whether it was started.
        """
        if not self._waiting:
            return False
        now = time.monotonic()
        closed = next((one for one in self._executors if one.closed_for is not None), None)
        first = self._first() if closed is None else self._closed_for(closed)
        if first is None:
            return False  # or it runs already
        call, slots = first
        if closed is None or not _is_empty(closed):
            # Another one may have become empty before the one that was closed.
            executor = self._choose(call, slots)
            if executor is not None and (closed is None or _is_better(executor, closed, call)):
                self._reopen(call)
                executor.closed_for = call
                closed = executor
        if closed is None or not _is_empty(closed) or not self._may_start(slots):
            return False
        if call.frame.function in closed.lacking or call.deadline_at <= now:
            return False  # they are loaded, and this is asked again; or it is about to be given up
        self._waiting.remove(first)
        self._start(call, slots, closed)
        return True

    def _first(self) -> tuple[LocalCall, Slots] | None:
        """The first that waits for which an executor can be closed."""
        return next((waiting for waiting in self._waiting if self._choose(*waiting)), None)

    def _closed_for(self, executor: ExecutorProcess) -> tuple[LocalCall, Slots] | None:
        return next((waiting for waiting in self._waiting if waiting[0] is executor.closed_for), None)

    def _choose(self, call: LocalCall, slots: Slots) -> ExecutorProcess | None:
        function = call.frame.function
        able = [one for one in self._executors if one.is_ready and function not in one.degraded]
        able.sort(
            key=lambda one: (
                function in one.lacking,
                one.is_moving,
                bool(one.resting),  # what rests would be lost with it
                len(one.calls) + len(one.ahead),
            )
        )
        return next((one for one in able if self._may_close(one, slots)), None)


def _is_better(executor: ExecutorProcess, closed: ExecutorProcess, call: LocalCall) -> bool:
    """Whether a call can start sooner in this executor than in that which is closed for it.

    It can't where it lacks models that the other one is about to have, as is likely where that loads some.
    """
    return _is_empty(executor) and not (closed.is_moving and call.frame.function in executor.lacking)


def _is_empty(executor: ExecutorProcess) -> bool:
    # What rests there waits for others, maybe for this very call.
    is_idle = len(executor.calls) == len(executor.resting)
    return executor.is_ready and is_idle and not executor.ahead and not executor.is_moving
