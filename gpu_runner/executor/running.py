"""The starts that haven't ended, by the ids that a stop may name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpu_runner.executor.starts import Id, Start

_MOST_STOPPED_EARLY: Final = 1000


class Running:
    """What runs or waits for its thread, and the stops that came before what they name."""

    def __init__(self) -> None:
        self._starts: dict[Id, Start] = {}
        self._stopped_early: set[Id] = set()

    def add(self, start: Start) -> None:
        """It is to run; what has been stopped before it came is marked."""
        for one in start.ids:
            self._starts[one] = start
            if one in self._stopped_early:
                self._stopped_early.discard(one)
                start.stop(one[0])

    def remove(self, start: Start) -> None:
        """It has ended; another start may have come under the same ids meanwhile, and that one stays."""
        for one in start.ids:
            if self._starts.get(one) is start:
                del self._starts[one]

    def get(self, job_id: str, attempt: int) -> Start | None:
        """What runs that start of a call."""
        return self._starts.get((job_id, attempt))

    def all(self) -> Iterable[Start]:
        """All of them, as they are now."""
        return list(self._starts.values())

    def stop_early(self, job_id: str, attempt: int) -> None:
        """Keep a stop of what has ended, or of which the turn hasn't come yet."""
        if len(self._stopped_early) >= _MOST_STOPPED_EARLY:
            self._stopped_early.clear()
        self._stopped_early.add((job_id, attempt))
