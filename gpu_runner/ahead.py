"""Short calls that an executor has been given before the one that it runs has ended.

Between two calls of a millisecond, an executor that has to ask for the next spends as long asleep as at
work, and so do the processes around it, which wake one another for each: with calls ahead, all of them
together take over a fifth less CPU time a call that does nothing. Nothing is reserved that way, as
all of them would be through within two milliseconds. A call counts as started only when the one before it has
ended, since an executor runs and answers in order. Where one takes longer than such calls do, those behind it
wait for it, up to fifteen of them: hence no more.
"""

from __future__ import annotations

from collections import deque

from gpu_runner.calls import LocalCall

_MOST = 15
_WITHIN_S = 0.002


class Ahead:
    """What waits inside one executor for its main thread."""

    def __init__(self) -> None:
        self.running: LocalCall | None = None
        self._calls: deque[LocalCall] = deque()
        self._expected_s = 0.0

    def __len__(self) -> int:
        return len(self._calls)

    def has_room_for(self, call: LocalCall) -> bool:
        """Whether this call, and all before it, are known to be short, and the running one isn't overdue."""
        running = self.running
        if running is None or not running.expected_s or not call.expected_s or len(self._calls) >= _MOST:
            return False
        if call.received_at - running.started_at > _WITHIN_S:
            return False
        return running.expected_s + self._expected_s + call.expected_s <= _WITHIN_S

    def add(self, call: LocalCall) -> None:
        """The call was sent to the executor."""
        self._calls.append(call)
        self._expected_s += call.expected_s

    def promote(self) -> LocalCall:
        """The first of them is running now."""
        call = self.running = self._calls.popleft()
        self._expected_s = self._expected_s - call.expected_s if self._calls else 0.0
        return call

    def take_back(self) -> list[LocalCall]:
        """All of them, the last one first: the executor is gone."""
        calls = list(reversed(self._calls))
        self._calls.clear()
        self._expected_s = 0.0
        self.running = None
        return calls
