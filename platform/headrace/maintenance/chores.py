"""Slow work that need not be exact, done by one gateway at a time."""

from __future__ import annotations

import logging
from typing import Final

from headrace.database import Database
from headrace.ledger import settling
from headrace.maintenance.pruning import Pruning
from headrace.queue.worker import Chore, Worker
from headrace.usage import storing

_log = logging.getLogger(__name__)

_EACH_MINUTE: Final = "* * * * *"
_EACH_HOUR: Final = "17 * * * *"
_AFTER_EACH_HOUR: Final = "5 * * * *"  # every process has sent its last minute by then, or is late
_NOTES: Final = 2000
"""Notes of expired jobs that one statement adds: 20 ms."""


class Chores(Worker):
    """The chores of a site; `run` them in every gateway.

    Args:
        database: an open one.
        pruning: forgets what was kept long enough.
    """

    def __init__(self, database: Database, pruning: Pruning) -> None:
        async def sweep() -> None:
            swept = await settling.sweep(database)
            if swept.entries_deleted or swept.entries_made:
                _log.warning(
                    "queue and ledger differed: deleted %d entries without a job, made %d that jobs lacked",
                    swept.entries_deleted,
                    swept.entries_made,
                )

        async def forget_runners() -> None:
            if forgotten := await settling.forget_runners(database):
                _log.info("forgot %d runners that were silent for long", forgotten)

        async def add_expired() -> None:
            while await storing.add_expired(database, _NOTES) == _NOTES:
                pass

        async def sum_up() -> None:
            while await storing.sum_up(database):
                pass  # all that has changed since the last time, the last hour as a rule

        super().__init__(
            database,
            [
                Chore("sweep", _EACH_MINUTE, sweep),
                Chore("forget_runners", _EACH_HOUR, forget_runners),
                Chore("add_expired_usage", _EACH_MINUTE, add_expired),
                Chore("sum_up_usage", _AFTER_EACH_HOUR, sum_up),
                Chore("prune_jobs", _EACH_MINUTE, pruning.often),
                Chore("prune_rest", _EACH_HOUR, pruning.seldom),
            ],
        )
