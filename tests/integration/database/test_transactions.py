"""Several statements that take effect together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from harness.postgres import terminate

from headrace.database import Database, Transaction
from headrace.errors import DatabaseBusy, DatabaseError, DatabaseUnavailable

INSERT = "INSERT INTO owner (name) VALUES (%s) RETURNING name"
NAMES = "SELECT name FROM owner ORDER BY name"
NAME = "headrace-test"


async def names(database: Database) -> list[str]:
    return [row["name"] for row in await database.fetch(NAMES)]


async def insert_then(
    database: Database, step: Callable[[Transaction], Awaitable[object]], within: float | None = None
) -> None:
    """A transaction that makes an owner and does something else."""
    async with database.transaction(within=within) as transaction:
        await transaction.fetch(INSERT, ["a"])
        await step(transaction)


def test_it_takes_effect_when_its_block_ends(database_url: str) -> None:
    async def scenario() -> None:
        async with await Database.open(database_url, application_name=NAME, max_size=2) as database:
            async with database.transaction() as transaction:
                assert await transaction.fetch(INSERT, ["a"]) == [{"name": "a"}]
                await transaction.fetch(INSERT, ["b"])
                assert await names(database) == []  # another connection's
            assert await names(database) == ["a", "b"]

    asyncio.run(scenario())


def test_what_raises_leaves_nothing(database_url: str) -> None:
    async def break_off(_: Transaction) -> None:
        raise ZeroDivisionError

    async def repeat(transaction: Transaction) -> None:
        await transaction.fetch(INSERT, ["a"])

    async def take_long(_: Transaction) -> None:
        await asyncio.sleep(30)

    async def scenario() -> None:
        async with await Database.open(database_url, application_name=NAME, max_size=1) as database:
            with pytest.raises(ZeroDivisionError):
                await insert_then(database, break_off)
            with pytest.raises(DatabaseError, match="duplicate key"):
                await insert_then(database, repeat)
            with pytest.raises(DatabaseUnavailable, match=r"no answer within 0\.2 s"):
                await insert_then(database, take_long, 0.2)
            assert await names(database) == []

    asyncio.run(scenario())


def test_lost_connection_is_told_as_such(database_url: str) -> None:
    lose = partial(asyncio.to_thread, terminate, database_url, NAME)

    async def lose_before_the_commit(_: Transaction) -> None:
        await lose()

    async def lose_before_a_statement(transaction: Transaction) -> None:
        await lose()
        await transaction.fetch(INSERT, ["b"])

    async def scenario() -> None:
        async with await Database.open(database_url, application_name=NAME, max_size=1) as database:
            for step in (lose_before_the_commit, lose_before_a_statement):
                with pytest.raises(DatabaseUnavailable):
                    await insert_then(database, step)
                assert await names(database) == []

    asyncio.run(scenario())


def test_what_passes_is_told_as_such(database_url: str) -> None:
    async def take(transaction: Transaction) -> None:
        await transaction.fetch("SELECT FROM owner WHERE name = 'b' FOR UPDATE NOWAIT")

    async def scenario() -> None:
        async with await Database.open(database_url, application_name=NAME, max_size=2) as database:
            await database.execute(INSERT, ["b"])
            async with database.transaction() as holder:
                await holder.fetch("SELECT FROM owner FOR UPDATE")
                with pytest.raises(DatabaseBusy):
                    await insert_then(database, take)
            assert await names(database) == ["b"]

    asyncio.run(scenario())
