"""How long executions take."""

from __future__ import annotations

from collections import deque

_WEIGHT = 0.1  # of the newest execution in the running mean
_RECENT = 101  # executions that the median is of
_FEW = 5  # fewer say nothing: the first may have been slow, and others shall not fail for that


class ServiceTime:
    """The execution times of one function, in seconds."""

    def __init__(self) -> None:
        self.mean = 0.0
        """The running mean, exponentially weighted: 0 until something has run."""
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._median: float | None = 0.0

    def observe(self, seconds: float) -> None:
        """Count one execution."""
        self.mean = seconds if self.mean == 0.0 else self.mean + _WEIGHT * (seconds - self.mean)
        self._recent.append(seconds)
        if len(self._recent) >= _FEW:
            self._median = None

    @property
    def median(self) -> float:
        """Of the last executions; 0 until there are some."""
        if self._median is None:
            self._median = sorted(self._recent)[len(self._recent) // 2]
        return self._median
