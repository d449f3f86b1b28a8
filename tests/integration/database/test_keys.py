from __future__ import annotations

import asyncio
import hashlib
import re
import subprocess
from pathlib import Path

import pytest
from harness.listening import hearing
from harness.postgres import query

from headrace import keys
from headrace.database import Database
from headrace.embedded.cluster import programs
from headrace.errors import DatabaseError
from headrace.site.first_key import first_key


async def opened(url: str) -> Database:
    return await Database.open(url, application_name="headrace-test")


def test_key_finds_its_owner_until_it_is_revoked(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            secret = await keys.create_key(database, "ada", "laptop")
            other = await keys.create_key(database, "ada", "server")
            found = await keys.find_owner(database, keys.hash_key(secret))
            assert found is not None
            assert found.owner == "ada"
            again = await keys.find_owner(database, keys.hash_key(other.encode()))
            assert again is not None
            assert again.owner_id == found.owner_id
            assert again.key_id != found.key_id

            assert await keys.revoke_key(database, found.key_id)
            assert await keys.find_owner(database, keys.hash_key(secret)) is None
            assert await keys.find_owner(database, keys.hash_key(other)) == again
            assert not await keys.revoke_key(database, found.key_id)

    asyncio.run(scenario())


def test_secret_is_random_and_well_formed(database_url: str) -> None:
    async def scenario() -> list[str]:
        async with await opened(database_url) as database:
            return [await keys.create_key(database, "ada") for _ in range(5)]

    secrets = asyncio.run(scenario())
    assert len(set(secrets)) == 5
    assert all(re.fullmatch(r"hr_[A-Za-z0-9_-]{43}", secret) for secret in secrets)


def test_unknown_key_has_no_owner(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            assert await keys.find_owner(database, keys.hash_key("hr_nobody")) is None

    asyncio.run(scenario())


def test_only_the_hash_is_stored(database_url: str) -> None:
    async def scenario() -> str:
        async with await opened(database_url) as database:
            return await keys.create_key(database, "ada", "laptop")

    secret = asyncio.run(scenario())
    assert query(database_url, "SELECT hash FROM api_key") == [(hashlib.sha256(secret.encode()).digest(),)]
    command = (str(programs() / "bin" / "pg_dump"), "--inserts", f"--dbname={database_url}")
    everything = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert secret[:11] in everything
    assert secret[:12] not in everything


@pytest.mark.parametrize("how", ["id", "prefix", "secret"])
def test_key_is_revoked_by_whatever_names_it(database_url: str, how: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            secret = await keys.create_key(database, "ada", "laptop")
            await keys.create_key(database, "ada", "kept")
            listed = (await keys.list_keys(database))[0]
            named = {"id": listed.key_id.upper(), "prefix": listed.prefix, "secret": secret}
            assert await keys.revoke_key(database, named[how])
            laptop, kept = await keys.list_keys(database)
            assert (laptop.name, kept.name) == ("laptop", "kept")
            assert laptop.revoked_at is not None
            assert laptop.revoked_at >= laptop.created_at
            assert kept.revoked_at is None

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["", "hr_", "%", "00000000-0000-0000-0000-000000000000"])
def test_nothing_else_revokes_a_key(database_url: str, name: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            await keys.create_key(database, "ada")
            assert not await keys.revoke_key(database, name)

    asyncio.run(scenario())


def test_owners_made_at_the_same_time_are_one(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            await asyncio.gather(*(keys.create_key(database, "ada") for _ in range(8)))
            assert len(await keys.list_keys(database)) == 8

    asyncio.run(scenario())
    assert query(database_url, "SELECT count(*) FROM owner") == [(1,)]


def test_every_change_is_notified_with_the_keys_id(database_url: str) -> None:
    async def scenario() -> None:
        async with (
            await opened(database_url) as database,
            hearing(database_url, keys.CHANNEL) as heard,
            asyncio.timeout(5),
        ):
            await keys.create_key(database, "ada")
            (key,) = await keys.list_keys(database)
            assert await heard.get() == key.key_id
            await keys.revoke_key(database, key.prefix)
            assert await heard.get() == key.key_id
            await keys.revoke_key(database, key.prefix)  # without effect, so nobody hears of it
            await keys.create_key(database, "eve")
            assert await heard.get() == (await keys.list_keys(database))[1].key_id

    asyncio.run(scenario())


def test_a_sites_first_key_may_do_everything(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            secret = await first_key(database, tmp_path)
            found = await keys.find_owner(database, keys.hash_key(secret))
            assert found is not None
            assert (found.scopes, found.functions) == ({"call", "read", "admin"}, None)
            assert await first_key(database, tmp_path) == secret

    asyncio.run(scenario())


def test_the_previous_releases_keys_may_call_and_read(database_url: str) -> None:
    query(
        database_url, "SELECT create_key_v1('ada', 'old', 'hr_abcdefgh', %s)", keys.hash_key("hr_abcdefghij")
    )

    async def scenario() -> None:
        async with await opened(database_url) as database:
            found = await keys.find_owner(database, keys.hash_key("hr_abcdefghij"))
            assert found is not None
            assert (found.owner, found.scopes, found.functions) == ("ada", {"call", "read"}, None)

    asyncio.run(scenario())


def test_a_key_may_call_everything_and_read_unless_it_is_said_otherwise(database_url: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            plain = await keys.create_key(database, "ada")
            narrow = await keys.create_key(
                database, "ada", scopes=["read", "call", "read"], functions=["score", "embed", "score"]
            )
            every = await keys.create_key(database, "ada", scopes=keys.SCOPES)
            found = [await keys.find_owner(database, keys.hash_key(key)) for key in (plain, narrow, every)]
            assert [(key.scopes, key.functions) for key in found if key] == [
                ({"call", "read"}, None),
                ({"call", "read"}, {"embed", "score"}),
                ({"call", "read", "admin"}, None),
            ]
            listed = [(key.scopes, key.functions) for key in await keys.list_keys(database)]
            assert listed == [
                (["call", "read"], None),
                (["call", "read"], ["embed", "score"]),
                (["call", "read", "admin"], None),
            ]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("scopes", "functions", "why"),
    [
        (["write"], None, "there is no scope 'write': the scopes are call, read, admin"),
        (["CALL"], None, "there is no scope 'CALL'"),
        ([], None, "a key needs a scope"),
        (["call"], ["Embed"], "no function can be named 'Embed'"),
        (["call"], ["embed", "embed,score"], "no function can be named 'embed,score'"),
        (["call"], [""], "no function can be named ''"),
        (["call"], ["a" * 41], "no function can be named"),
        (["call"], ["embed\n"], "no function can be named"),
        (["call"], [], "for 1 to 1000 of them"),
        (["call"], [f"f{n}" for n in range(1001)], "for 1 to 1000 of them"),
    ],
)
def test_impossible_scopes_and_functions_are_refused_by_python_and_by_sql(
    database_url: str, scopes: list[str], functions: list[str] | None, why: str
) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            with pytest.raises(ValueError, match=re.escape(why)):
                await keys.create_key(database, "ada", scopes=scopes, functions=functions)
            with pytest.raises(DatabaseError, match="check constraint"):
                await database.fetch(
                    "SELECT create_key_v2('ada', '', 'hr_abcdefgh', sha256(''), %s::text[], %s::text[], 'a')",
                    (scopes, functions),
                )

    asyncio.run(scenario())


@pytest.mark.parametrize(("owner", "name"), [("", ""), ("a" * 101, ""), ("a\nb", ""), ("ada", "a" * 101)])
def test_bad_labels_are_refused_by_python_and_by_sql(database_url: str, owner: str, name: str) -> None:
    async def scenario() -> None:
        async with await opened(database_url) as database:
            with pytest.raises(ValueError, match=r"must be [01] to 100 characters"):
                await keys.create_key(database, owner, name)
            with pytest.raises(DatabaseError, match="check constraint"):
                await database.fetch("SELECT create_key_v1(%s, %s, 'hr_abcdefgh', sha256(''))", (owner, name))

    asyncio.run(scenario())
