"""Who calls: API keys, looked up in Postgres once and remembered until a key changes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from headrace.database import Database
from headrace.errors import DatabaseUnavailable
from headrace.gateway.problems import Problem
from headrace.keys import KeyRow, find_owner, hash_key

V = TypeVar("V")

_MOST_KNOWN = 10_000
_MOST_UNKNOWN = 1_000
_UNKNOWN_FOR_S = 5.0
_LONGEST_KEY = 256
_LONGEST_SILENCE_S = 3.0


class Authenticator:
    """Turns an `Authorization` header into the key's owner.

    Known keys are served from memory, so calls go on while Postgres is away; `forget` runs whenever a key
    is made or revoked, and after each reconnect.

    Args:
        database: where keys are.
        database_away: seconds since Postgres last answered.
    """

    def __init__(self, database: Database, database_away: Callable[[], float] = lambda: 0.0) -> None:
        self._database = database
        self._database_away = database_away
        self._known: OrderedDict[bytes, KeyRow] = OrderedDict()
        self._unknown: OrderedDict[bytes, float] = OrderedDict()
        self._forgotten = 0

    def forget(self) -> None:
        """Look every key up again."""
        self._forgotten += 1
        self._known.clear()
        self._unknown.clear()

    async def owner(self, header: bytes | None) -> KeyRow:
        """The owner of the key in an `Authorization` header.

        Raises:
            Problem: `missing-key` or `invalid-key`.
            DatabaseUnavailable: the key isn't remembered and Postgres doesn't answer.
        """
        if header is None or not header.strip():
            raise Problem("missing-key")
        scheme, _, key = header.strip().partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise Problem("missing-key", "The `Authorization` header must be `Bearer KEY`.")
        digest = hash_key(key.strip())
        if (known := self._known.get(digest)) is not None:
            return known
        if len(key) > _LONGEST_KEY or self._unknown.get(digest, 0.0) > time.monotonic():
            raise Problem("invalid-key")
        if (away := self._database_away()) > _LONGEST_SILENCE_S:  # a query would hang as long as that takes
            raise DatabaseUnavailable(f"Postgres has not answered for {away:.0f} s")
        forgotten = self._forgotten
        row = await find_owner(self._database, digest)
        if row is None:
            # Keys are random, so guessing is hopeless; this only spares Postgres a client's wrong key.
            _remember(self._unknown, digest, time.monotonic() + _UNKNOWN_FOR_S, _MOST_UNKNOWN)
            raise Problem("invalid-key")
        if forgotten == self._forgotten:  # else it may have been revoked since it was read
            _remember(self._known, digest, row, _MOST_KNOWN)
        return row


def _remember(cache: OrderedDict[bytes, V], digest: bytes, value: V, most: int) -> None:
    cache[digest] = value
    if len(cache) > most:
        cache.popitem(last=False)
