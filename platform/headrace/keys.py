"""API keys: random secrets of which Postgres keeps only the SHA-256."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, get_args

import msgspec

from headrace import audit
from headrace.database import Database, queries
from headrace.domain import LANE_NAME, Priority
from headrace.owners import check_label

CHANNEL: Final = "headrace_keys"
"""Notified with its id whenever a key is made or revoked, or an owner's quota is changed."""

Scope = Literal["call", "read", "admin"]
"""What a key may do: call functions and cancel jobs, look at functions and jobs, operate the site."""

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
DEFAULT_SCOPES: Final[tuple[Scope, ...]] = ("call", "read")

_SQL: Final = queries("keys")
PREFIX_LENGTH: Final = 11
"""How many of a secret's first characters name it in lists."""

_SECRET_LENGTH: Final = 46
_MOST_FUNCTIONS: Final = 1000


class KeyRow(msgspec.Struct, frozen=True):
    """A key in force: whom it belongs to, what it may do, and how much its owner may use.

    Args:
        functions: the names that it may call; None is all of them.
        most_outstanding, rate, burst: the owner's quota, as in `owners.OwnerInfo`.
        highest_priority: the most urgent class of jobs that its owner may ask for.
    """

    key_id: str
    owner_id: str
    owner: str
    scopes: frozenset[Scope] = frozenset(DEFAULT_SCOPES)
    functions: frozenset[str] | None = None
    most_outstanding: int | None = None
    rate: float | None = None
    burst: int | None = None
    highest_priority: Priority = "high"


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it may be shown: never its secret nor its hash."""

    key_id: str
    owner: str
    name: str
    prefix: str
    scopes: list[Scope]
    functions: list[str] | None
    created_at: datetime
    revoked_at: datetime | None


def hash_key(key: str | bytes) -> bytes:
    """The SHA-256 under which a key is stored; of 256 random bits, so no salt and no slow hash is needed."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


async def create_key(
    database: Database,
    owner: str,
    name: str = "",
    *,
    scopes: Iterable[str] = DEFAULT_SCOPES,
    functions: Iterable[str] | None = None,
    actor: str | None = None,
) -> str:
    """Make a key, and its owner where there is none of that name yet.

    Args:
        database: where keys are.
        owner: whose it is.
        name: what it is for.
        scopes: what it may do, of `SCOPES`.
        functions: the names that it may call, registered or not; None is all of them.
        actor: who makes it, for the audit; by default whoever runs this program.

    Returns:
        The secret, which can't be had again.

    Raises:
        ValueError: `owner` or `name` is too long or holds control characters, a scope is unknown, or what
            should be a function's name can't be one.
    """
    check_label("the owner", owner, shortest=1)
    check_label("the name", name, shortest=0)
    secret = f"hr_{secrets.token_urlsafe(32)}"
    await database.fetch(
        _SQL["create"],
        {
            "owner": owner,
            "name": name,
            "prefix": secret[:PREFIX_LENGTH],
            "hash": hash_key(secret),
            "scopes": _known_scopes(scopes),
            "functions": None if functions is None else _possible_functions(functions),
            "actor": actor or audit.operator(),
        },
    )
    return secret


async def find_owner(database: Database, key_hash: bytes) -> KeyRow | None:
    """The key with its owner; None when it is unknown or revoked."""
    rows = await database.fetch(_SQL["find"], {"hash": key_hash})
    return msgspec.convert(rows[0], KeyRow) if rows else None


async def list_keys(database: Database) -> list[KeyInfo]:
    """All keys, revoked ones too, oldest first."""
    return msgspec.convert(await database.fetch(_SQL["list"]), list[KeyInfo])


async def revoke_key(database: Database, key: str, *, actor: str | None = None) -> bool:
    """Revoke the key with that id, prefix or secret; False when no key in force has it.

    Args:
        database: where keys are.
        key: the id, the prefix or the secret.
        actor: who does it, for the audit; by default whoever runs this program.
    """
    if len(key) == _SECRET_LENGTH:
        if (found := await find_owner(database, hash_key(key))) is None:
            return False
        key = found.key_id
    parameters = {"key": key, "actor": actor or audit.operator()}
    return (await database.fetch(_SQL["revoke"], parameters))[0]["revoked"]


def _known_scopes(scopes: Iterable[str]) -> list[str]:
    given = set(scopes)
    if unknown := sorted(given.difference(SCOPES)):
        raise ValueError(f"there is no scope {unknown[0]!r}: the scopes are {', '.join(SCOPES)}")
    if not given:
        raise ValueError(f"a key needs a scope: {', '.join(SCOPES)}")
    return [scope for scope in SCOPES if scope in given]


def _possible_functions(names: Iterable[str]) -> list[str]:
    given = sorted(set(names))
    if wrong := [name for name in given if LANE_NAME.fullmatch(name) is None]:
        raise ValueError(
            f"no function can be named {wrong[0]!r}: names are a lower-case letter and at most 39 lower-case "
            "letters, digits, - and _"
        )
    if not 1 <= len(given) <= _MOST_FUNCTIONS:
        raise ValueError(f"a key is for all functions, or for 1 to {_MOST_FUNCTIONS} of them")
    return given
