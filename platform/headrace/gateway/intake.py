"""What this gateway takes: nothing new where an operator has turned intake off."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable

from headrace.gateway.problems import Problem
from headrace.intake import RETRY_AFTER_S, Intake, Pause

IsKnown = Callable[[str, str, str], Awaitable[bool]]
"""Whether an owner's idempotency key stands for a call of a function, by owner, function and key."""

_SOONEST = 0.8


class Gate:
    """Refuses what is new; asked when a request comes, and again when its body is there.

    Args:
        is_known: asked only where a call with a key would be refused.
    """

    def __init__(self, is_known: IsKnown) -> None:
        self._is_known = is_known
        self.intake = Intake()
        """What is turned off, as last read."""

    def is_shut(self, name: str) -> bool:
        """Whether nothing new of a function is taken."""
        return self.intake.pause_of(name) is not None

    def require(self, name: str) -> None:
        """Let a function's work pass.

        Raises:
            Problem: `intake-paused`.
        """
        if (pause := self.intake.pause_of(name)) is not None:
            raise _problem(name, pause)

    async def require_or_known(self, name: str, owner_id: str, key: str | None) -> None:
        """Let a call pass, or one that an idempotency key stands for already: that is nothing new.

        Raises:
            Problem: `intake-paused`.
            DatabaseError: whether the key is known can't be told.
        """
        if (pause := self.intake.pause_of(name)) is None:
            return
        if key is None or not await self._is_known(owner_id, name, key):
            raise _problem(name, pause)


def _problem(name: str, pause: Pause) -> Problem:
    what = f"Nothing new of {name} is taken" if pause.function else "Nothing new is taken at this site"
    reason = f": {pause.reason}" if pause.reason else "."
    # Spread, so that callers don't come back as one.
    spread = random.uniform(_SOONEST, 1)  # noqa: S311 - spreads load, guards nothing
    seconds = math.ceil((pause.retry_after_s or RETRY_AFTER_S) * spread)
    return Problem("intake-paused", what + reason, headers={"Retry-After": str(seconds)})


async def nothing_known(_owner_id: str, _function: str, _key: str) -> bool:
    """Of a gateway without a ledger."""
    return False
