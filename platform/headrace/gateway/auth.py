"""Who calls: API keys, looked up in Postgres once and remembered until a key changes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from headrace.database import Database
from headrace.domain import WEIGHTS, Priority
from headrace.gateway.outage import require_postgres
from headrace.gateway.problems import Problem
from headrace.keys import KeyRow, Scope, find_owner, hash_key

V = TypeVar("V")

_MOST_KNOWN = 10_000
_MOST_UNKNOWN = 1_000
_UNKNOWN_FOR_S = 5.0
_LONGEST_KEY = 256
_BEARER = b"Bearer "
_INSUFFICIENT = 'Bearer realm="headrace", error="insufficient_scope"'


class Authenticator:
    """Turns an `Authorization` header into the key, with its owner.

    Known keys are served from memory, so calls go on while Postgres is away; `forget` runs whenever a key
    is made or revoked, or a quota is changed, and after each reconnect.

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

    def known(self, header: bytes | None) -> KeyRow | None:
        """The owner of a remembered key, in a header as clients mostly write it; None: ask `owner`."""
        if header is None or not header.startswith(_BEARER):
            return None
        return self._known.get(hash_key(header[len(_BEARER) :]))

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
        require_postgres(self._database_away())
        forgotten = self._forgotten
        row = await find_owner(self._database, digest)
        if row is None:
            # Keys are random, so guessing is hopeless; this only spares Postgres a client's wrong key.
            _remember(self._unknown, digest, time.monotonic() + _UNKNOWN_FOR_S, _MOST_UNKNOWN)
            raise Problem("invalid-key")
        if forgotten == self._forgotten:  # else it may have been revoked since it was read
            _remember(self._known, digest, row, _MOST_KNOWN)
        return row


def require(key: KeyRow, *scopes: Scope) -> None:
    """Pass a key that has one of these scopes.

    Raises:
        Problem: `forbidden`.
    """
    if key.scopes.isdisjoint(scopes):
        named = " or ".join(f"`{scope}`" for scope in scopes)
        raise Problem(
            "forbidden",
            f"The key lacks the scope {named}.",
            headers={"WWW-Authenticate": f'{_INSUFFICIENT}, scope="{scopes[0]}"'},
        )


def require_call(key: KeyRow, function: str) -> None:
    """Pass a key that may call this function.

    Raises:
        Problem: `forbidden`.
    """
    if "call" not in key.scopes:
        require(key, "call")
    if key.functions is not None and function not in key.functions:
        raise Problem("forbidden", f"The key may not call `{function}`.")


def require_priority(key: KeyRow, wanted: Priority) -> None:
    """Pass a key whose owner may ask for jobs of this class.

    Raises:
        Problem: `priority-not-allowed`.
    """
    if WEIGHTS[wanted] > WEIGHTS[key.highest_priority]:
        raise Problem(
            "priority-not-allowed",
            f"The owner of the key may ask for `{key.highest_priority}` at most, not for `{wanted}`.",
        )


def _remember(cache: OrderedDict[bytes, V], digest: bytes, value: V, most: int) -> None:
    cache[digest] = value
    if len(cache) > most:
        cache.popitem(last=False)
