"""Runners that were lost, seen by the locks that they hold, long before their leases run out."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from headrace.database import Database
from headrace.ledger import settling

_log = logging.getLogger(__name__)

ABSENT_S: Final = 1.0
"""Seconds for which a lock must be absent, without a renewal, before its runner counts as lost."""
GAP_S: Final = 2.0
"""Seconds from one look to the next after which what was seen proves nothing: the machine may have slept."""
SLOW_S: Final = 1.0
"""The same of a look that took so long."""


@dataclass(slots=True)
class _Absent:
    since: float
    mark: datetime | None


class SessionWatch:
    """Says which runners are lost, from looks at the locks that are held.

    That a lock is absent proves something only of a runner whose lock was seen before, and only while one
    connection lasts: when Postgres is restarted, or fails over, all locks vanish, and this connection with
    them. A runner that is heard of meanwhile has lost its lock, and lives: its mark has changed.

    Instants are seconds of this machine's boot-time clock.
    """

    def __init__(self) -> None:
        self._connection: Hashable = None
        self._looked_at = float("-inf")
        self._looked_until = float("-inf")
        self._seen: set[str] = set()
        self._absent: dict[str, _Absent | None] = {}

    def clear(self) -> None:
        """Forget everything: the connection has failed."""
        self._seen.clear()
        self._absent.clear()

    def look(self, before: float, after: float, connection: Hashable, held: Collection[str]) -> list[str]:
        """Take what one look has found.

        Args:
            before: when it was asked for.
            after: when the answer was there.
            connection: what tells the connection, and the start of the server, from all others.
            held: the sessions whose locks are held.

        Returns:
            The sessions whose locks were seen and are absent: `lost` wants their marks.
        """
        if connection != self._connection or before - self._looked_at > GAP_S or after - before > SLOW_S:
            self.clear()
        self._connection = connection
        self._looked_at, self._looked_until = before, after
        self._seen.update(held)
        for session_id in held:
            self._absent.pop(session_id, None)
        for session_id in self._seen.difference(held):
            self._absent.setdefault(session_id, None)
        return list(self._absent)

    def lost(self, marks: Mapping[str, datetime | None]) -> dict[str, datetime]:
        """Take the marks of absent sessions, read after the look; returns those that are lost, with theirs.

        One without a mark runs nothing, and is forgotten after the same time: a claim may have been on its
        way when it ended.
        """
        lost: dict[str, datetime] = {}
        for session_id, mark in marks.items():
            absent = self._absent.get(session_id)
            if absent is None or absent.mark != mark:
                self._absent[session_id] = _Absent(self._looked_until, mark)
            elif self._looked_at - absent.since >= ABSENT_S:
                if mark is None:
                    self._seen.discard(session_id)
                    del self._absent[session_id]
                else:
                    lost[session_id] = mark
        return lost


async def reap_lost(database: Database, watch: SessionWatch, actor: str) -> None:
    """One look: what lost runners ran starts again elsewhere, or ends.

    Args:
        database: an open one, of one connection.
        watch: of the same connection.
        actor: who does it, for the jobs' events.
    """
    before = boot_time()
    held = await settling.held_sessions(database)
    absent = watch.look(before, boot_time(), (held.backend, held.server_started_at), held.session_ids)
    if not absent:
        return
    marks = await settling.session_marks(database, absent)
    for session_id, mark in watch.lost(marks).items():
        if moved := await settling.reap_session(database, session_id, mark, actor):
            _log.warning("runner %s was lost: %d jobs start again elsewhere, or end", session_id, moved)


def boot_time() -> float:
    """Seconds that nobody sets, and that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
