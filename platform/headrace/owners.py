"""Owners: whom keys, calls and jobs belong to, and how much each may use."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from headrace import audit
from headrace.database import Database, Jsonb, queries
from headrace.domain import Priority
from headrace.errors import HeadraceError

MOST_OUTSTANDING: Final = 10_000_000
LEAST_RATE: Final = 1e-5
"""Calls per second; about one a day."""
MOST_RATE: Final = 1e6
MOST_BURST: Final = 1_000_000

_SQL: Final = queries("owners")
_LABEL: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f]*")


class OwnerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An owner with its quota.

    Args:
        most_outstanding: how many unfinished jobs it may have; None is the site's `HEADRACE_OWNER_JOBS`.
        rate: calls per second over all gateways; None is any number.
        burst: calls at once within that rate; None is one second's worth, at least one.
        highest_priority: the most urgent class of jobs that it may ask for.
        keys: how many of its keys are in force.
        outstanding: how many unfinished jobs it has.
    """

    owner_id: str
    name: str
    created_at: datetime
    most_outstanding: int | None
    rate: float | None
    burst: int | None
    highest_priority: Priority
    keys: int
    outstanding: int


async def list_owners(database: Database) -> list[OwnerInfo]:
    """All owners, in the order of their names."""
    return msgspec.convert(await database.fetch(_SQL["list"]), list[OwnerInfo])


async def create_owner(
    database: Database,
    name: str,
    *,
    most_outstanding: int | None = None,
    rate: float | None = None,
    burst: int | None = None,
    highest_priority: Priority = "high",
    actor: str | None = None,
) -> bool:
    """Make an owner; False when there is one of that name.

    The quota is as in `OwnerInfo`; `actor` makes it, for the audit, by default whoever runs this program.

    Raises:
        ValueError: the name or a number isn't allowed, or there is a burst without a rate.
    """
    check_label("the owner", name, shortest=1)
    _check_quota(most_outstanding, rate, burst)
    if burst is not None and rate is None:
        raise _burst_without_rate()
    parameters = {
        "name": name,
        "most_outstanding": most_outstanding,
        "rate": rate,
        "burst": burst,
        "highest_priority": highest_priority,
        "actor": actor or audit.operator(),
    }
    return (await database.fetch(_SQL["create"], parameters))[0]["created"]


async def set_quota(
    database: Database,
    name: str,
    *,
    most_outstanding: int | UnsetType | None = UNSET,
    rate: float | UnsetType | None = UNSET,
    burst: int | UnsetType | None = UNSET,
    highest_priority: Priority | UnsetType = UNSET,
    actor: str | None = None,
) -> None:
    """Change what is given; None goes back to the default, and a burst goes with its rate.

    The quota is as in `OwnerInfo`; `actor` changes it, for the audit, by default whoever runs this program.

    Raises:
        ValueError: a number isn't allowed, or the owner would have a burst without a rate.
        HeadraceError: there is no such owner.
    """
    given = {
        "most_outstanding": most_outstanding,
        "rate": rate,
        "burst": burst,
        "highest_priority": highest_priority,
    }
    changes = {name: value for name, value in given.items() if value is not UNSET}
    _check_quota(most_outstanding, rate, burst)
    parameters = {"name": name, "changes": Jsonb(changes), "actor": actor or audit.operator()}
    outcome = (await database.fetch(_SQL["set"], parameters))[0]["outcome"]
    if outcome == "unknown":
        raise HeadraceError(f"there is no owner {name!r}: see `headrace owners`")
    if outcome == "no-rate":
        raise _burst_without_rate()


def check_label(what: str, value: str, *, shortest: int) -> None:
    """Pass what may name an owner or a key.

    Raises:
        ValueError: it is too short or too long, or holds control characters.
    """
    if not shortest <= len(value) <= 100 or _LABEL.fullmatch(value) is None:
        raise ValueError(f"{what} must be {shortest} to 100 characters without control characters")


def _check_quota(
    most_outstanding: int | UnsetType | None, rate: float | UnsetType | None, burst: int | UnsetType | None
) -> None:
    for what, value, least, most in (
        ("the number of unfinished jobs", most_outstanding, 1, MOST_OUTSTANDING),
        ("the rate", rate, LEAST_RATE, MOST_RATE),
        ("the burst", burst, 1, MOST_BURST),
    ):
        if isinstance(value, (int, float)) and not least <= value <= most:  # NaN is nowhere between
            raise ValueError(f"{what} must be from {_plain(least)} to {_plain(most)}, not {value}")


def _plain(number: float) -> str:
    return f"{number:.5f}".rstrip("0").rstrip(".")


def _burst_without_rate() -> ValueError:
    return ValueError("a burst needs a rate that it is within")
