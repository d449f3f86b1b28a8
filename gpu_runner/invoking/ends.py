"""How a runner hears of the ends of jobs that its calls wait for.

Whoever ends such a job notifies this runner's channel. Notifications get lost with their connection, so one
query a second asks for all of them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Final

from headrace.database import Database
from headrace.domain import FINAL
from headrace.errors import DatabaseError
from headrace.ledger import reading

LOOK_S: Final = 1.0
"""Between two looks at all jobs that are waited for."""


class Ends:
    """All that one runner waits for.

    Args:
        database: the ledger's.
        session_id: the name under which the ledger knows who waits.
    """

    def __init__(self, database: Database, session_id: str) -> None:
        self.channel = f"headrace_jobs_{session_id.replace('-', '')}"
        """Where this runner is told; the payload is the job's id."""
        self._database = database
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._soon = asyncio.Event()

    @contextlib.contextmanager
    def watch(self, job_id: str) -> Generator[asyncio.Event]:
        """Set when the job may have ended; enter before the ledger learns of it, or its end may be missed."""
        event = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(event)
        try:
            yield event
        finally:
            events = self._waiting[job_id]
            events.remove(event)
            if not events:
                del self._waiting[job_id]

    def heard(self, job_id: str) -> None:
        """A notification came."""
        for event in self._waiting.get(job_id, ()):
            event.set()

    def connected(self) -> None:
        """What was notified before is lost: look at once."""
        self._soon.set()

    async def look(self) -> None:
        """Look at all of them with one query."""
        job_ids = list(self._waiting)
        if not job_ids:
            return
        with contextlib.suppress(DatabaseError):  # the next look is soon
            standings = await reading.standings(self._database, job_ids)
            for job_id in job_ids:
                if job_id not in standings or standings[job_id][0] in FINAL:
                    self.heard(job_id)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._soon.wait()
            self._soon.clear()
            await self.look()
