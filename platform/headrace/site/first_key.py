"""The key that a new site comes with."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.database import Database
from headrace.keys import SCOPES, create_key, find_owner, hash_key
from headrace.site.key_file import read_key, write_key

OWNER: Final = "default"


async def first_key(database: Database, home: Path) -> str:
    """The home's key; a new one when there is none, or when this database doesn't know it."""
    known = read_key(home)
    if known and await find_owner(database, hash_key(known)) is not None:
        return known
    key = await create_key(database, OWNER, "first key", scopes=SCOPES)
    write_key(home, key)
    return key
