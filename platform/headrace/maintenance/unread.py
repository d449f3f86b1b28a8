"""Replies that nobody reads."""

from __future__ import annotations

import logging
from typing import Final

from headrace.database import ANSWER_WITHIN, Database, queries

_log = logging.getLogger(__name__)
_SQL: Final = queries("maintenance")


async def end_unread(database: Database, older_s: float = ANSWER_WITHIN) -> int:
    """End sessions whose client doesn't read the reply to what it has written.

    Until it is read, a large reply (a claim's, with the inputs) keeps its statement from committing, and all
    rows that this wrote locked: for ever, if the client was stopped. Rolled back, they are free for all.

    Args:
        database: an open one.
        older_s: seconds for which the statement has been under way; its client has given it up by then.

    Returns:
        How many it has ended.
    """
    rows = await database.fetch(_SQL["end_unread"], {"older_s": older_s})
    for row in rows:
        _log.warning("ended session %d of Postgres, whose reply was not read for %g s", row["pid"], older_s)
    return len(rows)
