from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness.postgres import query

from headrace.database import Database
from headrace.errors import DatabaseUnavailable
from headrace.gateway import auth
from headrace.gateway.auth import Authenticator, require, require_call
from headrace.gateway.problems import Problem
from headrace.keys import KeyRow, Scope, create_key, revoke_key
from headrace.owners import set_quota


def run(url: str, scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), await Database.open(url, application_name="test") as database:
            await scenario(database, Authenticator(database))

    asyncio.run(limited())


async def refusal(authenticator: Authenticator, header: bytes | None) -> Problem:
    with pytest.raises(Problem) as caught:
        await authenticator.owner(header)
    assert caught.value.status == 401
    assert caught.value.headers["WWW-Authenticate"].startswith("Bearer")
    return caught.value


def bearer(key: str) -> bytes:
    return f"Bearer {key}".encode()


def test_a_key_is_known_by_its_owner_however_the_scheme_is_written(database_url: str) -> None:
    async def scenario(database: Database, authenticator: Authenticator) -> None:
        key = (await create_key(database, "ada", "laptop")).encode()
        for header in (
            *(b"Bearer " + key, b"bearer " + key, b"BEARER " + key, b"bEaReR " + key),
            *(b"Bearer   " + key, b"Bearer " + key + b"  ", b"  Bearer " + key, b"Bearer \t" + key),
        ):
            for _ in range(2):  # from Postgres, then from memory
                assert (await authenticator.owner(header)).owner == "ada"

    run(database_url, scenario)


def test_only_a_remembered_key_is_known_without_asking(database_url: str) -> None:
    async def scenario(database: Database, authenticator: Authenticator) -> None:
        key = (await create_key(database, "ada", "laptop")).encode()
        assert authenticator.known(b"Bearer " + key) is None  # not yet
        row = await authenticator.owner(b"Bearer " + key)
        assert authenticator.known(b"Bearer " + key) is row
        for header in (
            None,
            b"",
            key,
            b"bearer " + key,
            b"Bearer  " + key,
            b"Bearer " + key[:-1],
            b"Bearer ",
        ):
            assert authenticator.known(header) is None
        authenticator.forget()
        assert authenticator.known(b"Bearer " + key) is None

    run(database_url, scenario)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing-key"),
        (b"", "missing-key"),
        (b"   ", "missing-key"),
        (b"Bearer", "missing-key"),
        (b"Bearer ", "missing-key"),
        (b"Basic dXNlcjpwYXNz", "missing-key"),
        (b"KEY", "missing-key"),
        (b"BearerKEY", "missing-key"),
        (b"Bearer KEY", "invalid-key"),
        (b"Bearer KEY, Bearer KEY", "invalid-key"),
        (b"Bearer \xff\xfe\x00", "invalid-key"),
        (b"Bearer " + b"x" * 100_000, "invalid-key"),
    ],
)
def test_a_wrong_header_is_refused(database_url: str, header: bytes | None, code: str) -> None:
    async def scenario(database: Database, authenticator: Authenticator) -> None:
        await create_key(database, "ada")
        for _ in range(2):
            assert (await refusal(authenticator, header)).code == code

    run(database_url, scenario)


def test_two_keys_in_one_request_are_none(database_url: str) -> None:
    async def scenario(database: Database, authenticator: Authenticator) -> None:
        key = await create_key(database, "ada")
        assert (await refusal(authenticator, bearer(f"{key}, Bearer {key}"))).code == "invalid-key"
        assert (await refusal(authenticator, bearer(key[:-1]))).code == "invalid-key"
        assert (await refusal(authenticator, bearer(key.upper()))).code == "invalid-key"

    run(database_url, scenario)


def test_a_known_key_works_without_postgres_and_an_unknown_one_is_not_refused(database_url: str) -> None:
    async def scenario(database: Database, authenticator: Authenticator) -> None:
        known, other = await create_key(database, "ada"), await create_key(database, "bob")
        await authenticator.owner(bearer(known))
        await database.close()  # from here on every look-up fails
        assert (await authenticator.owner(bearer(known))).owner == "ada"
        with pytest.raises(DatabaseUnavailable):
            await authenticator.owner(bearer(other))

    run(database_url, scenario)


def test_a_revoked_key_is_refused_once_it_is_forgotten(database_url: str) -> None:
    async def scenario(database: Database, authenticator: Authenticator) -> None:
        key = await create_key(database, "ada")
        await authenticator.owner(bearer(key))
        assert await revoke_key(database, key)
        authenticator.forget()
        assert (await refusal(authenticator, bearer(key))).code == "invalid-key"

    run(database_url, scenario)


def test_a_key_that_is_read_while_keys_change_is_not_remembered(database_url: str) -> None:
    """Read before it was revoked, answered after: nobody would ever look it up again."""

    async def scenario(database: Database, authenticator: Authenticator) -> None:
        key = await create_key(database, "ada")
        reading = asyncio.ensure_future(authenticator.owner(bearer(key)))
        await asyncio.sleep(0)
        assert not reading.done()
        authenticator.forget()
        assert (await reading).owner == "ada"  # as it was when the call came
        await revoke_key(database, key)
        assert (await refusal(authenticator, bearer(key))).code == "invalid-key"

    run(database_url, scenario)


def test_a_wrong_key_asks_postgres_once_in_a_while(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(database: Database, authenticator: Authenticator) -> None:
        asked = 0
        find_owner = auth.find_owner

        async def counting(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            return await find_owner(*arguments)

        monkeypatch.setattr(auth, "find_owner", counting)
        for _ in range(5):
            await refusal(authenticator, b"Bearer wrong")
        assert asked == 1
        authenticator.forget()  # a key was made: it may be this one
        await refusal(authenticator, b"Bearer wrong")
        assert asked == 2
        monkeypatch.setattr(auth, "_UNKNOWN_FOR_S", -1.0)
        await refusal(authenticator, b"Bearer other")
        await refusal(authenticator, b"Bearer other")
        assert asked == 4

    run(database_url, scenario)


def test_a_key_that_is_made_after_it_was_tried_works_at_once(database_url: str) -> None:
    async def scenario(database: Database, authenticator: Authenticator) -> None:
        key = await create_key(database, "ada")
        query(database_url, "UPDATE api_key SET revoked_at = now()")
        await refusal(authenticator, bearer(key))
        query(database_url, "UPDATE api_key SET revoked_at = NULL")
        await refusal(authenticator, bearer(key))
        authenticator.forget()
        assert (await authenticator.owner(bearer(key))).owner == "ada"

    run(database_url, scenario)


def test_what_is_remembered_is_bounded(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_MOST_KNOWN", 3)
    monkeypatch.setattr(auth, "_MOST_UNKNOWN", 3)

    async def scenario(database: Database, authenticator: Authenticator) -> None:
        keys = [await create_key(database, "ada") for _ in range(5)]
        for key in keys:
            await authenticator.owner(bearer(key))
            await refusal(authenticator, bearer("wrong-" + key))
        assert len(authenticator._known) == len(authenticator._unknown) == 3
        await database.close()
        for key in keys[2:]:  # the newest
            assert (await authenticator.owner(bearer(key))).owner == "ada"
            assert (await refusal(authenticator, bearer("wrong-" + key))).code == "invalid-key"
        with pytest.raises(DatabaseUnavailable):
            await authenticator.owner(bearer(keys[0]))

    run(database_url, scenario)


def test_an_unknown_key_does_not_wait_for_a_database_that_is_silent(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        raise AssertionError("Postgres was asked")

    async def scenario(database: Database, _: Authenticator) -> None:
        away = 0.0
        authenticator = Authenticator(database, lambda: away)
        known, other = await create_key(database, "ada"), await create_key(database, "bob")
        await authenticator.owner(bearer(known))
        away = 3.5
        with monkeypatch.context() as patched:
            patched.setattr(auth, "find_owner", never)
            assert (await authenticator.owner(bearer(known))).owner == "ada"
            with pytest.raises(DatabaseUnavailable, match="has not answered for 4 s"):
                await authenticator.owner(bearer(other))
        away = 2.5
        assert (await authenticator.owner(bearer(other))).owner == "bob"

    run(database_url, scenario)


def test_a_changed_quota_is_known_once_it_is_forgotten(database_url: str) -> None:
    async def scenario(database: Database, authenticator: Authenticator) -> None:
        header = bearer(await create_key(database, "ada", functions=["embed"]))
        key = await authenticator.owner(header)
        assert (key.functions, key.rate, key.most_outstanding) == ({"embed"}, None, None)
        await set_quota(database, "ada", rate=2.5, burst=4, most_outstanding=9)
        assert await authenticator.owner(header) is key
        authenticator.forget()
        key = await authenticator.owner(header)
        assert (key.functions, key.rate, key.burst, key.most_outstanding) == ({"embed"}, 2.5, 4, 9)

    run(database_url, scenario)


def key_with(*scopes: Scope, functions: frozenset[str] | None = None) -> KeyRow:
    return KeyRow("k", "o", "ada", frozenset(scopes), functions)


@pytest.mark.parametrize(
    ("has", "needs", "named"),
    [
        (("read",), ("call",), "`call`"),
        (("call",), ("read",), "`read`"),
        (("call", "read"), ("admin",), "`admin`"),
        (("admin",), ("read", "call"), "`read` or `call`"),
    ],
)
def test_a_missing_scope_is_named_in_detail_and_challenge(
    has: tuple[Scope, ...], needs: tuple[Scope, ...], named: str
) -> None:
    with pytest.raises(Problem) as caught:
        require(key_with(*has), *needs)
    assert (caught.value.code, caught.value.status) == ("forbidden", 403)
    assert caught.value.detail == f"The key lacks the scope {named}."
    challenge = f'Bearer realm="headrace", error="insufficient_scope", scope="{needs[0]}"'
    assert caught.value.headers == {"WWW-Authenticate": challenge}


def test_one_of_the_scopes_is_enough() -> None:
    require(key_with("call"), "read", "call")
    require(key_with("call", "read", "admin"), "admin")


def test_a_key_calls_its_functions_and_no_others() -> None:
    require_call(key_with("call"), "anything")
    narrow = key_with("call", functions=frozenset({"embed", "score"}))
    require_call(narrow, "embed")
    with pytest.raises(Problem) as caught:
        require_call(narrow, "emb")
    assert (caught.value.code, caught.value.detail) == ("forbidden", "The key may not call `emb`.")
    assert 'error="insufficient_scope"' in caught.value.headers["WWW-Authenticate"]
    with pytest.raises(Problem, match="lacks the scope `call`"):
        require_call(key_with("read", functions=frozenset({"embed"})), "embed")
