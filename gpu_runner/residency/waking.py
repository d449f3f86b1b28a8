"""A look that is due at some instant."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

_SHORTEST_S: Final = 0.001


class Waking:
    """Has one look due at a time: the one that was set last.

    Args:
        look: called in the event loop.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self.at = math.inf
        """When it is due, in `time.monotonic()`; infinite: not at all."""
        self._look = look
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Look at that instant instead; infinite: not at all."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.at = None, at
        if at < math.inf:
            seconds = max(at - time.monotonic(), _SHORTEST_S)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._timed)

    def _timed(self) -> None:
        self._timer, self.at = None, math.inf
        self._look()
