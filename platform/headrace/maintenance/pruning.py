"""Forgetting in small batches, one kind of thing after the other, for a bounded time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Final

from headrace.database import Database
from headrace.ledger import retention
from headrace.usage import storing
from headrace.usage.reading import HOURS_KEPT, MINUTES_KEPT

_log = logging.getLogger(__name__)

WITHIN: Final = 20.0
"""Seconds after which a run leaves the rest to the next one."""
LIMIT: Final = 500
"""Rows that one statement forgets at most."""
_FIRST: Final = 50
_QUICK_S: Final = 0.2
_SLOW_S: Final = 1.0

Prune = Callable[[int], Awaitable[int]]
"""Forgets at most so many rows; returns how many it has."""


class Pruning:
    """What a site forgets, and after how long.

    Args:
        database: an open one.
        job_ttl_s: how long finished jobs are kept.
        key_ttl_s: how long idempotency keys stand for their calls.
        audit_ttl_s: how long it is kept who changed what.
    """

    def __init__(self, database: Database, *, job_ttl_s: float, key_ttl_s: float, audit_ttl_s: float) -> None:
        # A batch's key stands for the batch, not for a job.
        batch_ttl_s = max(job_ttl_s, key_ttl_s)
        self._often: dict[str, Prune] = {
            "jobs": lambda limit: retention.prune_jobs(database, job_ttl_s, limit),
            "results": lambda limit: retention.prune_results(database, limit),
            "idempotency keys": lambda limit: retention.prune_keys(database, limit),
        }
        self._seldom: dict[str, Prune] = {
            "jobs' items": lambda limit: retention.prune_items(database, job_ttl_s, limit),
            "batches": lambda limit: retention.prune_batches(database, batch_ttl_s, limit),
            "flows": lambda limit: retention.prune_flows(database, limit),
            "audit rows": lambda limit: retention.prune_audit(database, audit_ttl_s, limit),
            "minutes of usage": lambda limit: storing.prune_minutes(
                database, MINUTES_KEPT.total_seconds(), limit
            ),
            "hours of usage": lambda limit: storing.prune_hours(database, HOURS_KEPT.total_seconds(), limit),
        }

    async def often(self) -> None:
        """Forget what each call leaves behind: jobs, results, idempotency keys."""
        await prune(self._often)

    async def seldom(self) -> None:
        """Forget what there is less of: items without a job, batches, flows, audit rows, counts of usage."""
        await prune(self._seldom)


async def prune(kinds: Mapping[str, Prune]) -> dict[str, int]:
    """Forget all that is past its time, or as much as there is time for, each kind in turns.

    Logs one line when there was anything.

    Args:
        kinds: what does it, by the name of what it forgets.

    Returns:
        How many of each kind.
    """
    counts = dict.fromkeys(kinds, 0)
    limits = dict.fromkeys(kinds, _FIRST)
    ends_at = monotonic() + WITHIN
    try:
        while limits:
            for kind in list(limits):
                began = monotonic()
                if began >= ends_at:
                    return counts
                asked = limits[kind]
                count = await kinds[kind](asked)
                counts[kind] += count
                if count < asked:
                    del limits[kind]
                else:
                    limits[kind] = _next_limit(asked, monotonic() - began)
        return counts
    finally:
        if told := ", ".join(f"{count} {kind}" for kind, count in counts.items() if count):
            _log.info("pruned %s", told)


def _next_limit(limit: int, took_s: float) -> int:
    """Rows for the next statement: inputs and results of many megabytes make few of them much."""
    if took_s > _SLOW_S:
        return max(1, limit // 2)
    return min(LIMIT, 2 * limit) if took_s < _QUICK_S else limit
