"""Whether calls, jobs and batches are taken: of the whole site, and of single functions.

Operators turn intake off and on; gateways hear of it on the registry's channel and refuse what is new. What
was accepted goes on, also where it becomes a job only later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from headrace import audit
from headrace.database import Database, queries

RETRY_AFTER_S: Final = 30.0
"""When callers should come back, where the operator said nothing."""

LEAST_RETRY_AFTER_S: Final = 1.0
MOST_RETRY_AFTER_S: Final = 600.0
MOST_REASON: Final = 500

Resumed = Literal["resumed", "was-on", "unknown-function"]
"""What became of a resume; `was-on`: there was nothing to do."""

_SITE: Final = ""
_SQL: Final = queries("intake")


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing is taken, since when and by whom.

    Args:
        function: which it is of; empty for the whole site.
        reason: for callers; may be empty.
        retry_after_s: when they should come back; None is `RETRY_AFTER_S`.
    """

    function: str
    reason: str
    retry_after_s: float | None
    changed_at: datetime
    changed_by: str


class Intake(msgspec.Struct, frozen=True, kw_only=True):
    """What is turned off.

    Args:
        site: the pause of the whole site.
        functions: those of single functions, by name.
        open: functions that take work although the site is paused.
    """

    site: Pause | None = None
    functions: Mapping[str, Pause] = {}
    open: frozenset[str] = frozenset()

    def pause_of(self, name: str) -> Pause | None:
        """The pause that keeps a function from taking work; None where it takes it."""
        return self.functions.get(name) or (None if name in self.open else self.site)

    @property
    def pauses(self) -> Sequence[Pause]:
        """All of them, the site's first."""
        return [*([self.site] if self.site else []), *self.functions.values()]


async def load(database: Database) -> Intake:
    """Read it."""
    rows = await database.fetch(_SQL["load"])
    off = {row["function"]: msgspec.convert(row, Pause) for row in rows if not row["open"]}
    site = off.pop(_SITE, None)
    return Intake(site=site, functions=off, open=frozenset(row["function"] for row in rows if row["open"]))


async def pause(
    database: Database,
    function: str | None = None,
    *,
    reason: str = "",
    retry_after_s: float | None = None,
    actor: str | None = None,
) -> bool:
    """Take nothing new; repeated, it replaces the reason and when callers should come back.

    Args:
        database: an open one.
        function: only of this one; None is the whole site, without functions that were resumed meanwhile.
        reason: what callers are told.
        retry_after_s: when they should come back; None is `RETRY_AFTER_S`.
        actor: who does it, for the audit; by default whoever runs this program.

    Returns:
        False when there is no such function.

    Raises:
        ValueError: the reason is too long, or the time isn't from 1 to 600 s.
    """
    if len(reason) > MOST_REASON:
        raise ValueError(f"the reason has {len(reason)} characters; it may have {MOST_REASON}")
    if retry_after_s is not None and not LEAST_RETRY_AFTER_S <= retry_after_s <= MOST_RETRY_AFTER_S:
        least, most = LEAST_RETRY_AFTER_S, MOST_RETRY_AFTER_S
        raise ValueError(f"callers may be asked back in {least:g} to {most:g} s, not in {retry_after_s:g} s")
    parameters = {
        "function": function or _SITE,
        "reason": reason,
        "retry_after_s": retry_after_s,
        "actor": actor or audit.operator(),
    }
    return (await database.fetch(_SQL["pause"], parameters))[0]["known"]


async def resume(database: Database, function: str | None = None, *, actor: str | None = None) -> Resumed:
    """Take what is new again.

    Args:
        database: an open one.
        function: only of this one, also while the site is paused; None ends the pause of the site, and leaves
            those of single functions.
        actor: who does it, for the audit; by default whoever runs this program.
    """
    parameters = {"function": function or _SITE, "actor": actor or audit.operator()}
    return (await database.fetch(_SQL["resume"], parameters))[0]["outcome"]
