"""API keys: random secrets of which Postgres keeps only the SHA-256."""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import datetime
from typing import Final

import msgspec

from headrace.database import Database, queries

CHANNEL: Final = "headrace_keys"
"""Notified with the key's id whenever a key is made or revoked."""

_SQL: Final = queries("keys")
PREFIX_LENGTH: Final = 11
"""How many of a secret's first characters name it in lists."""

_SECRET_LENGTH: Final = 46
_LABEL: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f]*")


class KeyRow(msgspec.Struct, frozen=True):
    """Whom a key in force belongs to."""

    key_id: str
    owner_id: str
    owner: str


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it may be shown: never its secret nor its hash."""

    key_id: str
    owner: str
    name: str
    prefix: str
    created_at: datetime
    revoked_at: datetime | None


def hash_key(key: str | bytes) -> bytes:
    """The SHA-256 under which a key is stored; of 256 random bits, so no salt and no slow hash is needed."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


async def create_key(database: Database, owner: str, name: str = "") -> str:
    """Make a key, and its owner where there is none of that name yet.

    Returns:
        The secret, which can't be had again.

    Raises:
        ValueError: `owner` or `name` is too long, or holds control characters.
    """
    _check_label("the owner", owner, shortest=1)
    _check_label("the name", name, shortest=0)
    secret = f"hr_{secrets.token_urlsafe(32)}"
    await database.fetch(
        _SQL["create"],
        {"owner": owner, "name": name, "prefix": secret[:PREFIX_LENGTH], "hash": hash_key(secret)},
    )
    return secret


async def find_owner(database: Database, key_hash: bytes) -> KeyRow | None:
    """The owner of a key; None when it is unknown or revoked."""
    rows = await database.fetch(_SQL["find"], {"hash": key_hash})
    return msgspec.convert(rows[0], KeyRow) if rows else None


async def list_keys(database: Database) -> list[KeyInfo]:
    """All keys, revoked ones too, oldest first."""
    return msgspec.convert(await database.fetch(_SQL["list"]), list[KeyInfo])


async def revoke_key(database: Database, key: str) -> bool:
    """Revoke the key with that id, prefix or secret; False when no key in force has it."""
    if len(key) == _SECRET_LENGTH:
        if (found := await find_owner(database, hash_key(key))) is None:
            return False
        key = found.key_id
    return (await database.fetch(_SQL["revoke"], {"key": key}))[0]["revoked"]


def _check_label(what: str, value: str, *, shortest: int) -> None:
    if not shortest <= len(value) <= 100 or _LABEL.fullmatch(value) is None:
        raise ValueError(f"{what} must be {shortest} to 100 characters without control characters")
