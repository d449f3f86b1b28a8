"""Handing running calls over to the ledger when their connections can't be held any longer.

The runner records the call and goes on with it, so the gateway only has to ask in time, and to understand
what may come instead: the result, which had been on its way; that it hadn't started; or nothing, as the link
is cut.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.errors import DatabaseError
from headrace.gateway.asked import Asked
from headrace.gateway.metrics import GatewayMetrics, HandoverEnd
from headrace.gateway.pending import PendingCall
from headrace.link.frames import Answer, Error, Fenced, Handed, Lost, Refused, Result

_LEAST_LEAD_S: Final = 0.05
_LARGEST_SHARE: Final = 0.5  # of the hold: else a slow Postgres would leave no time to answer in
_RECENT: Final = 200  # handovers that the lead is made of
_FORGOTTEN_AFTER_S: Final = 600.0  # so that one slow hour of Postgres doesn't shorten the next day's holds
_MOST_COUNTED_S: Final = 1.0  # longer ones have waited out an outage, which the next ones don't meet

Recorded = Callable[[str, str], Awaitable[bool]]
"""Whether the ledger has a job of that id, of that owner."""


class Lead:
    """How long before the end of a hold its handover is begun: the 99th percentile of recent ones."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def observe(self, now: float, seconds: float) -> None:
        """A handover has taken so long, and ended at an instant of the loop's clock."""
        self._recent.append((now, seconds))

    def seconds(self, now: float, hold_s: float) -> float:
        """The lead for a hold of so many seconds: at least 50 ms, but at most half of it."""
        while self._recent and self._recent[0][0] < now - _FORGOTTEN_AFTER_S:
            self._recent.popleft()
        took = sorted(seconds for _, seconds in self._recent)
        slow = took[math.ceil(0.99 * len(took)) - 1] if took else 0.0
        return min(max(slow, _LEAST_LEAD_S), hold_s * _LARGEST_SHARE)


class Handovers:
    """Decides when calls are handed over, by each function's recent ones, and counts what comes of it.

    Args:
        metrics: where they are counted.
        recorded: asks the ledger.
    """

    def __init__(self, metrics: GatewayMetrics, recorded: Recorded) -> None:
        self._metrics = metrics
        self._recorded = recorded
        self._leads: defaultdict[str, Lead] = defaultdict(Lead)

    def due_after(self, asked: Asked, now: float) -> float:
        """Seconds from its acceptance after which a call is handed over if it runs, and isn't begun any more.

        The whole hold, where it can't be handed over.
        """
        hold = asked.span.hold
        return hold - self._lead_s(asked, now) if asked.may_be_handed else hold

    def begin(self, pending: PendingCall, asked: Asked, now: float, elapsed_s: float) -> bool:
        """Ask the runner to record the call; False where that can't be.

        Args:
            pending: the start that runs.
            asked: the call.
            now: an instant of the loop's clock.
            elapsed_s: seconds since the call's acceptance.
        """
        record = asked.record
        if record is None or not asked.may_be_handed or pending.hand_over is None:
            return False
        self._metrics.handover_begun()
        pending.handover_at = now
        asked.is_handed_over = True
        pending.hand_over(asked.handover(record, elapsed_s))
        return True

    def ended(
        self, pending: PendingCall, asked: Asked, now: float, answer: Answer | None, *, has_left: bool = False
    ) -> None:
        """Count what came of a handover.

        Args:
            pending: the start that was handed over.
            asked: the call.
            now: an instant of the loop's clock.
            answer: what ended it; None where nobody waits for it any longer.
            has_left: the client was gone first.
        """
        took = now - pending.handover_at
        end = _end_of(pending, answer, has_left=has_left)
        if end in ("handed", "fenced"):
            self._leads[asked.manifest.name].observe(now, min(took, _MOST_COUNTED_S))
        self._metrics.handed_over(end, took)

    async def is_recorded(self, pending: PendingCall, asked: Asked, now: float) -> bool:
        """Whether a call that was to be recorded when its link was cut is in the ledger.

        The runner may have been about to: the ledger is asked when that should be over. Where Postgres
        doesn't answer, nothing can be said for it.
        """
        await asyncio.sleep(pending.handover_at + self._lead_s(asked, now) - now)
        try:
            return await self._recorded(asked.job_id, asked.owner_id)
        except DatabaseError:
            return False

    def _lead_s(self, asked: Asked, now: float) -> float:
        return self._leads[asked.manifest.name].seconds(now, asked.span.hold)


def _end_of(pending: PendingCall, answer: Answer | None, *, has_left: bool) -> HandoverEnd:
    match answer:
        case Handed():
            return "withdrawn" if answer.withdrawn else "handed"
        case Fenced():
            return "fenced"
        case Result() | Error():
            return "answered"
        case Refused():
            return "withdrawn"
        case Lost():
            return "cut" if pending.is_cut else "lost"
        case None:
            return "left" if has_left else "deadline"
