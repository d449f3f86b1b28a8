"""The audit: who changed what at the site. Most of it is written in SQL, in the transaction of the change."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from headrace.database import Database, Jsonb, queries

ACTIONS: Final = (
    "key.create",
    "key.revoke",
    "owner.create",
    "owner.set",
    "function.retire",
    "function.limit",
    "intake.pause",
    "intake.resume",
    "runner.drain",
    "runner.load",
    "runner.unload",
    "job.cancel",
    "job.retry",
    "batch.cancel",
    "jobs.cancel",
    "jobs.retry",
    "jobs.move",
)
"""All that is audited."""

_SQL: Final = queries("audit")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change.

    Args:
        at: when it was made.
        actor: who made it: `operator:`, `key:` or `owner:` and a name or an id.
        action: what was done, as `noun.verb`.
        subject: to which thing: a key's first characters, an owner's or a function's name, an id.
        detail: how; never a secret.
    """

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]


def operator() -> str:
    """The actor that stands for whoever runs this program, by login name."""
    try:
        name = getpass.getuser()
    except (ImportError, KeyError, OSError):  # no such user: containers run under numbers
        name = ""
    return f"operator:{name.encode('utf-8', 'replace').decode() or os.getuid()}"


async def note(
    database: Database, *, actor: str, action: str, subject: str, detail: Mapping[str, Any]
) -> None:
    """Write what no command of SQL writes by itself.

    Args:
        database: an open one.
        actor: who does it.
        action: what, as `noun.verb`.
        subject: to which thing.
        detail: how, as JSON.
    """
    await database.fetch(
        _SQL["note"], {"actor": actor, "action": action, "subject": subject, "detail": Jsonb(dict(detail))}
    )


async def list_audit(
    database: Database,
    *,
    subject: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    limit: int = 50,
) -> list[AuditEntry]:
    """Changes, the newest first.

    Args:
        database: an open one.
        subject: only those of this thing.
        actor: only those that this one made.
        action: only those of this kind.
        limit: at most so many.
    """
    parameters = {"subject": subject, "actor": actor, "action": action, "limit": limit}
    return msgspec.convert(await database.fetch(_SQL["list"], parameters), list[AuditEntry])
