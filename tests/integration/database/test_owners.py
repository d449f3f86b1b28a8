from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from harness.listening import hearing
from harness.postgres import query

from headrace import keys, owners, registry
from headrace.database import Database
from headrace.errors import DatabaseError, HeadraceError

Scenario = Callable[[Database], Coroutine[Any, Any, None]]


def run(url: str, scenario: Scenario) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), await Database.open(url, application_name="headrace-test") as opened:
            await scenario(opened)

    asyncio.run(limited())


def quota(owner: owners.OwnerInfo | keys.KeyRow | None) -> tuple[int | None, float | None, int | None]:
    assert owner is not None
    return owner.most_outstanding, owner.rate, owner.burst


def test_owners_are_listed_by_name_with_their_keys_in_force(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        assert await owners.list_owners(database) == []
        assert await owners.create_owner(database, "shop", most_outstanding=5, rate=2.5, burst=10)
        for _ in range(3):
            key = await keys.create_key(database, "ada")
        await keys.revoke_key(database, key)
        ada, shop = await owners.list_owners(database)
        assert (ada.name, ada.keys, ada.outstanding, quota(ada)) == ("ada", 2, 0, (None, None, None))
        assert (shop.name, shop.keys, shop.outstanding, quota(shop)) == ("shop", 0, 0, (5, 2.5, 10))

    run(database_url, scenario)


def test_an_owner_is_made_once_and_keeps_its_quota(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        made = await asyncio.gather(*(owners.create_owner(database, "ada", rate=1 + n) for n in range(4)))
        assert sorted(made) == [False, False, False, True]
        rate = 1 + made.index(True)
        assert not await owners.create_owner(database, "ada", rate=9)
        key = await keys.create_key(database, "ada")
        assert quota(await keys.find_owner(database, keys.hash_key(key))) == (None, rate, None)

    run(database_url, scenario)


def test_a_quota_changes_in_what_is_given(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        key = keys.hash_key(await keys.create_key(database, "ada"))
        for change, expected in (
            ({"rate": 0.5}, (None, 0.5, None)),
            ({"burst": 3}, (None, 0.5, 3)),
            ({"most_outstanding": 7}, (7, 0.5, 3)),
            ({"rate": 1000, "burst": None}, (7, 1000.0, None)),
            ({}, (7, 1000.0, None)),
            ({"most_outstanding": None, "burst": 1}, (None, 1000.0, 1)),
            ({"rate": None}, (None, None, None)),  # the burst was within it
            ({"rate": 1, "burst": 2}, (None, 1.0, 2)),
        ):
            await owners.set_quota(database, "ada", **change)  # type: ignore[arg-type]
            assert quota(await keys.find_owner(database, key)) == expected

    run(database_url, scenario)


def test_other_owners_keep_theirs(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        for name in ("ada", "bob"):
            await owners.create_owner(database, name, rate=1)
        await owners.set_quota(database, "ada", rate=2)
        assert [owner.rate for owner in await owners.list_owners(database)] == [2, 1]

    run(database_url, scenario)


def test_an_unknown_owner_has_no_quota_to_set(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        await owners.create_owner(database, "ada")
        with pytest.raises(HeadraceError, match="there is no owner 'Ada': see `headrace owners`"):
            await owners.set_quota(database, "Ada", rate=1)

    run(database_url, scenario)


def test_a_burst_needs_a_rate(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        with pytest.raises(ValueError, match="a burst needs a rate"):
            await owners.create_owner(database, "ada", burst=5)
        await owners.create_owner(database, "ada", rate=1, burst=1)
        with pytest.raises(ValueError, match="a burst needs a rate"):
            await owners.set_quota(database, "ada", rate=None, burst=5)
        assert quota((await owners.list_owners(database))[0]) == (None, 1, 1)
        with pytest.raises(DatabaseError, match="owner_burst_has_rate"):
            await database.fetch("UPDATE owner SET rate = NULL")

    run(database_url, scenario)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"most_outstanding": 0}, "the number of unfinished jobs must be from 1 to 10000000, not 0"),
        ({"most_outstanding": -1}, "not -1"),
        ({"most_outstanding": 2**31}, "not 2147483648"),
        ({"rate": 0.0}, "the rate must be from 0.00001 to 1000000, not 0.0"),
        ({"rate": -1.0}, "not -1"),
        ({"rate": math.nan}, "not nan"),
        ({"rate": math.inf}, "not inf"),
        ({"rate": 1e-9}, "not 1e-09"),
        ({"rate": 1, "burst": 0}, "the burst must be from 1 to 1000000, not 0"),
        ({"rate": 1, "burst": -5}, "not -5"),
    ],
)
def test_bad_numbers_are_refused_by_python_and_by_sql(
    database_url: str, change: dict[str, Any], why: str
) -> None:
    async def scenario(database: Database) -> None:
        await owners.create_owner(database, "ada")
        with pytest.raises(ValueError, match=why):
            await owners.create_owner(database, "bob", **change)
        with pytest.raises(ValueError, match=why):
            await owners.set_quota(database, "ada", **change)
        as_text = {name: str(value) for name, value in change.items()}  # JSON has no NaN, but its text has
        with pytest.raises(DatabaseError, match=r"check constraint|out of range"):
            await database.fetch("SELECT set_owner_v1('ada', %s::jsonb, 'a')", (json.dumps(as_text),))
        (ada,) = await owners.list_owners(database)
        assert quota(ada) == (None, None, None)

    run(database_url, scenario)


def test_a_bad_name_is_refused(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        for name in ("", "a\nb", "a" * 101):
            with pytest.raises(ValueError, match="the owner must be 1 to 100 characters"):
                await owners.create_owner(database, name)

    run(database_url, scenario)


def test_gateways_are_told_of_a_changed_quota(database_url: str) -> None:
    async def scenario(database: Database) -> None:
        async with hearing(database_url, keys.CHANNEL) as heard:
            await owners.create_owner(database, "ada")  # has no key yet, so nobody remembers it
            with pytest.raises(HeadraceError):
                await owners.set_quota(database, "eve", rate=1)
            await owners.set_quota(database, "ada", rate=1)
            assert await heard.get() == (await owners.list_owners(database))[0].owner_id

    run(database_url, scenario)


def test_a_quota_is_set_while_rows_that_refer_to_the_owner_are_written(database_url: str) -> None:
    """As `submit` does in its transaction."""

    async def scenario(database: Database) -> None:
        await keys.create_key(database, "ada")
        async with await Database.open(database_url, application_name="headrace-test") as other:
            writing = asyncio.create_task(
                other.fetch(
                    "INSERT INTO api_key (owner_id, name, prefix, hash)"
                    " SELECT id, '', 'hr_abcdefgh', sha256('') FROM owner RETURNING pg_sleep(30)"
                )
            )
            while (
                query(
                    database_url,
                    "SELECT 1 FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event = 'PgSleep'",
                )
                == []
            ):
                await asyncio.sleep(0.01)
            async with asyncio.timeout(5):
                await owners.set_quota(database, "ada", rate=1)
            assert not writing.done()
            query(
                database_url,
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event = 'PgSleep'",
            )
            with pytest.raises(DatabaseError):
                await writing

    run(database_url, scenario)


def test_live_gateways_are_counted(database_url: str) -> None:
    first, second = str(uuid.uuid4()), str(uuid.uuid4())

    async def scenario(database: Database) -> None:
        assert await registry.gateway_seen(database, first) == 1
        assert await registry.gateway_seen(database, second) == 2
        assert await registry.gateway_seen(database, first) == 2
        query(database_url, "UPDATE gateway SET seen_at = seen_at - interval '11 s' WHERE id = %s", second)
        assert await registry.gateway_seen(database, first) == 1
        assert query(database_url, "SELECT count(*) FROM gateway") == [(2,)]
        assert await registry.gateway_seen(database, second) == 2  # it was only slow
        query(database_url, "UPDATE gateway SET seen_at = seen_at - interval '61 s' WHERE id = %s", second)
        assert await registry.gateway_seen(database, first) == 1
        assert query(database_url, "SELECT id::text FROM gateway") == [(first,)]

    run(database_url, scenario)


def test_gateways_that_are_seen_at_the_same_time_see_each_other_afterwards(database_url: str) -> None:
    ids = [str(uuid.uuid4()) for _ in range(4)]

    async def scenario(database: Database) -> None:
        query(
            database_url,
            "INSERT INTO gateway SELECT gen_random_uuid(), now() - interval '1 hour'"
            " FROM generate_series(1, 500)",
        )
        for _ in range(5):
            await asyncio.gather(*(registry.gateway_seen(database, one) for one in ids))
        assert await registry.gateway_seen(database, ids[0]) == 4
        assert query(database_url, "SELECT count(*) FROM gateway") == [(4,)]

    run(database_url, scenario)
