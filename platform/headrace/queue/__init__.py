"""All that knows Procrastinate: nothing outside this package imports it.

A job of the ledger waits as one *entry*, a row of Procrastinate's table of jobs: the right to run it, and the
wake-up of whoever may. Entries are written and claimed in our own SQL; Procrastinate's own Worker
(`headrace.queue.worker`) runs chores only.
"""

from __future__ import annotations

from importlib import metadata
from typing import Final, LiteralString, TypedDict

SCHEMA_VERSION: Final = "3.10"
"""The minor version of Procrastinate whose schema the database holds."""

TASK: Final = "headrace.run"
"""The task of every entry."""

MAINTENANCE_QUEUE: Final = "headrace.maintenance"
"""The queue of the chores; its dot keeps it apart from every lane."""

ENTRY_VERSION: Final = 1
"""The version of an entry's arguments."""


class EntryArguments(TypedDict):
    """What an entry carries: the ledger has the rest."""

    job_id: str
    v: int


def entry_arguments(job_id: str) -> EntryArguments:
    """The arguments of the entry of a job."""
    return {"job_id": job_id, "v": ENTRY_VERSION}


def channel(lane: str) -> str:
    """Where Procrastinate notifies of a new entry in a lane."""
    return f"procrastinate_queue_v1#{lane}"


def installed_version() -> str:
    """The version of the installed Procrastinate, e.g. "3.10.0"; read without importing it."""
    return metadata.version("procrastinate")


def schema() -> LiteralString:
    """The SQL that Procrastinate ships for an empty database: one script of many statements."""
    from procrastinate.schema import SchemaManager  # noqa: PLC0415 - 50 ms that an up-to-date database needn't pay

    return SchemaManager.get_schema()
