"""What every long-lived process does first: wait for Postgres and for its schema."""

from __future__ import annotations

import asyncio
import logging

from headrace.database import Database
from headrace.errors import DatabaseError, SetupError
from headrace.migrations import check

log = logging.getLogger(__name__)

_RETRY_S = 0.1


async def open_database(url: str, *, application_name: str, patience_s: float, max_size: int = 4) -> Database:
    """A database whose schema is this program's, waiting for both.

    Processes of a site start in any order, and Postgres may be the last.

    Raises:
        SetupError: it wasn't there within `patience_s` seconds; the message has the last reason.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    told = ""
    while True:
        try:
            await asyncio.to_thread(check, url)
            return await Database.open(url, application_name=application_name, max_size=max_size)
        except DatabaseError as error:
            if loop.time() > deadline:
                raise SetupError(f"gave up after {patience_s:g} s: {error}") from error
            if str(error) != told:
                told = str(error)
                log.info("waiting: %s", told)
            await asyncio.sleep(_RETRY_S)
