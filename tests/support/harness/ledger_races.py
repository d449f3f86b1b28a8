"""Two commands for one job at the same time, on two connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import psycopg

from harness.ledger import until_blocked
from headrace.database import Database, Transaction

T = TypeVar("T")
U = TypeVar("U")


class _Begun:
    """Commands of the ledger inside a transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def fetch(self, query: Any, params: Any = None, *, within: float | None = None) -> list[Any]:
        return await self._transaction.fetch(query, params)

    async def execute(self, query: Any, params: Any = None) -> None:
        raise NotImplementedError


@asynccontextmanager
async def begun(database: Database) -> AsyncGenerator[Database]:
    """A database whose commands are committed together at the end, or undone by `psycopg.Rollback`."""
    async with database.transaction(within=60) as transaction:
        yield cast("Database", _Begun(transaction))


async def race(
    database: Database,
    first: Callable[[Database], Awaitable[T]],
    second: Callable[[Database], Awaitable[U]],
    *,
    waits: bool = True,
    undone: bool = False,
) -> tuple[T, U]:
    """What two commands answer, of which the second is given before the first has committed.

    Args:
        database: for both, a connection each.
        first: done, and committed when the second waits, or has been answered.
        second: given meanwhile.
        waits: whether the second has to wait for the first.
        undone: the first is rolled back.
    """
    async with asyncio.timeout(30):
        async with begun(database) as other:
            earlier = await first(other)
            task = asyncio.ensure_future(second(database))
            if waits:
                await until_blocked(database, 1)
                assert not task.done()
            else:
                await task
            if undone:
                raise psycopg.Rollback
        return earlier, await task
