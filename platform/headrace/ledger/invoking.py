"""What the ledger and the registry know that a call needs to call another function."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Final

import msgspec

from headrace.database import Database, queries
from headrace.domain import WEIGHTS, Manifest, Priority

_SQL: Final = queries("invoking")
_log = logging.getLogger(__name__)


class Invoker(msgspec.Struct, frozen=True, kw_only=True):
    """A call that calls others.

    Args:
        most_outstanding: its owner's quota, as in `owners.OwnerInfo`.
        highest_priority: the most urgent class of jobs that its owner may ask for.
        weight: its own, as a job; None where it isn't in the ledger.
        actor: who submitted it; None likewise.
        now: the database's time.
    """

    most_outstanding: int | None
    highest_priority: Priority
    weight: float | None
    actor: str | None
    now: datetime

    @property
    def is_job(self) -> bool:
        """Whether it is in the ledger."""
        return self.weight is not None

    @property
    def childs_weight(self) -> float:
        """The weight of a job that it makes: its own, else at most that of `normal`."""
        usual = min(self.highest_priority, "normal", key=WEIGHTS.__getitem__)
        return WEIGHTS[usual] if self.weight is None else self.weight


async def invoker(database: Database, job_id: str, owner_id: str) -> Invoker | None:
    """What is known of a call of this owner; None where there is no such owner any more."""
    rows = await database.fetch(_SQL["invoker"], {"job_id": job_id, "owner_id": owner_id})
    return msgspec.convert(rows[0], Invoker) if rows else None


async def manifest(database: Database, name: str) -> Manifest | None:
    """The newest manifest of a function; None where it is unknown or retired, or can't be read."""
    rows = await database.fetch(_SQL["manifest"], {"name": name})
    try:
        return msgspec.json.decode(rows[0]["manifest"], type=Manifest) if rows else None
    except (msgspec.DecodeError, ValueError) as error:
        _log.error("the registered manifest of %s can't be read: %s", name, error)
        return None
