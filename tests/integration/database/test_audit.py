"""Who made, changed and took back what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from harness.postgres import query

from headrace import audit, keys, owners, registry
from headrace.audit import list_audit
from headrace.database import Database
from headrace.errors import HeadraceError
from headrace.site.first_key import first_key

ADA = "operator:ada"
Scenario = Callable[[Database], Coroutine[Any, Any, None]]


def run(url: str, scenario: Scenario) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), await Database.open(url, application_name="headrace-test") as opened:
            await scenario(opened)

    asyncio.run(limited())


async def told(database: Database, **only: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Action, subject and detail of each change, in order."""
    entries = await list_audit(database, **only)
    return [(entry.action, entry.subject, entry.detail) for entry in reversed(entries)]


def test_keys_are_told_of_without_their_secrets(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        secret = await keys.create_key(
            database, "shop", "web", scopes=["call"], functions=["fish"], actor=ADA
        )
        other = await keys.create_key(database, "shop", actor=ADA)
        assert await keys.revoke_key(database, secret, actor="operator:bob")
        assert not await keys.revoke_key(database, secret, actor="operator:eve")
        first, second = (key.key_id for key in await keys.list_keys(database))
        prefix = secret[: keys.PREFIX_LENGTH]
        named = {"key_id": first, "owner": "shop", "name": "web"}
        assert await told(database) == [
            ("owner.create", "shop", {}),
            ("key.create", prefix, {**named, "scopes": ["call"], "functions": ["fish"]}),
            (
                "key.create",
                other[: keys.PREFIX_LENGTH],
                {
                    "key_id": second,
                    "owner": "shop",
                    "name": "",
                    "scopes": ["call", "read"],
                    "functions": None,
                },
            ),
            ("key.revoke", prefix, named),
        ]
        assert [entry.actor for entry in await list_audit(database)] == ["operator:bob", ADA, ADA, ADA]
        (rows,) = query(database_url, "SELECT string_agg(a::text, ' ') FROM audit a")
        assert secret not in rows[0]
        assert keys.hash_key(secret).hex() not in rows[0]

    run(database_url, scenario)


def test_owners_are_told_of_with_what_was_changed(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        assert await owners.create_owner(database, "shop", rate=2, highest_priority="normal", actor=ADA)
        assert not await owners.create_owner(database, "shop", actor=ADA)
        await owners.set_quota(database, "shop", rate=None, most_outstanding=5, actor=ADA)
        await owners.set_quota(database, "shop", highest_priority="low", actor=ADA)
        await owners.set_quota(database, "shop", actor=ADA)  # changes nothing
        with pytest.raises(HeadraceError):
            await owners.set_quota(database, "nobody", rate=1, actor=ADA)
        with pytest.raises(ValueError, match="a burst needs a rate"):
            await owners.set_quota(database, "shop", burst=1, actor=ADA)
        assert await told(database) == [
            ("owner.create", "shop", {"rate": 2, "highest_priority": "normal"}),
            ("owner.set", "shop", {"rate": None, "most_outstanding": 5}),
            ("owner.set", "shop", {"highest_priority": "low"}),
        ]
        assert (await owners.list_owners(database))[0].highest_priority == "low"

    run(database_url, scenario)


def test_a_retired_function_is_told_of_once(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        await database.fetch("SELECT register_function_v1('fish', 'i', 'r', '{}')")
        assert await registry.retire(database, "fish", actor=ADA)
        assert not await registry.retire(database, "fish", actor=ADA)
        assert await told(database) == [("function.retire", "fish", {})]

    run(database_url, scenario)


def test_entries_are_listed_newest_first_and_by_what_is_asked_for(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        for number in range(3):
            await audit.note(
                database, actor=f"a{number}", action="thing.do", subject="s", detail={"n": number}
            )
        await audit.note(database, actor="a0", action="thing.undo", subject="t", detail={})
        assert [entry.detail.get("n") for entry in await list_audit(database)] == [None, 2, 1, 0]
        assert len(await list_audit(database, limit=2)) == 2
        assert await told(database, actor="a0") == [("thing.do", "s", {"n": 0}), ("thing.undo", "t", {})]
        assert await told(database, action="thing.undo") == [("thing.undo", "t", {})]
        assert await told(database, subject="s", actor="a1") == [("thing.do", "s", {"n": 1})]

    run(database_url, scenario)


def test_the_first_key_is_told_of(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "gauss")

    async def scenario(database: Database) -> None:
        key = await first_key(database, tmp_path)
        assert await first_key(database, tmp_path) == key
        created = await list_audit(database, action="key.create")
        assert [(entry.actor, entry.subject) for entry in created] == [
            ("operator:gauss", key[: keys.PREFIX_LENGTH])
        ]

    run(database_url, scenario)


def test_an_operator_without_a_login_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nobody)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    assert audit.operator() == "operator:1234"


def test_a_name_that_is_no_text_can_be_written(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "g\udce4uss")

    async def scenario(database: Database) -> None:
        await owners.create_owner(database, "shop")
        assert (await list_audit(database))[0].actor == "operator:g?uss"
        assert json.dumps([entry.detail for entry in await list_audit(database)])

    run(database_url, scenario)
