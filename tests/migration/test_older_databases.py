"""What is in a database of an older release stays, and works, when it is brought up to date."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.postgres import query

from headrace import owners
from headrace.database import Database
from headrace.keys import find_owner, hash_key, list_keys
from headrace.migrations import check, load, migrate


@pytest.fixture
def before_scopes(tmp_path: Path) -> Path:
    """The migrations of the release in which keys had no scopes."""
    for migration in load()[:2]:
        (tmp_path / f"{migration.label}.sql").write_text(migration.sql)
    return tmp_path


def test_keys_without_scopes_may_call_and_read(empty_database_url: str, before_scopes: Path) -> None:
    url = empty_database_url
    migrate(url, before_scopes)
    create = "SELECT create_key_v1('ada', 'laptop', %s, %s)"
    for prefix in ("hr_abcdefgh", "hr_ijklmnop"):
        query(url, create, prefix, hash_key(prefix))
    query(url, "SELECT revoke_key_v1('hr_ijklmnop')")

    assert migrate(url) == [migration.label for migration in load()[2:]]
    check(url)

    async def scenario() -> None:
        async with await Database.open(url, application_name="headrace-test") as database:
            found = await find_owner(database, hash_key("hr_abcdefgh"))
            assert found is not None
            assert (found.owner, found.scopes, found.functions) == ("ada", {"call", "read"}, None)
            assert (found.most_outstanding, found.rate, found.burst) == (None, None, None)
            assert await find_owner(database, hash_key("hr_ijklmnop")) is None
            assert [key.scopes for key in await list_keys(database)] == [["call", "read"]] * 2
            (ada,) = await owners.list_owners(database)
            assert (ada.name, ada.keys, ada.outstanding) == ("ada", 1, 0)

    asyncio.run(scenario())
