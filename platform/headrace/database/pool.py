"""A small pool of autocommit connections that says at once why Postgres can't be had.

psycopg's own pool reconnects in the background, backing off for minutes, and a waiting caller learns
neither the reason nor of the recovery. Here the caller connects: a refusal is raised with its reason, and
the first query after Postgres returned works.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from headrace.database.connection import Connection, connect_async, translate, unavailable
from headrace.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from psycopg.abc import QueryNoTemplate

Row: TypeAlias = dict[str, Any]
Params: TypeAlias = Mapping[str, Any] | Sequence[Any]

ANSWER_WITHIN: Final = 10.0
"""Seconds that a query may take, waiting for a free connection included."""

_SLOWEST: Final = 256 * 2**10
"""Bytes a second: what brings large values is given the time that they take at this rate."""


def within(size: int) -> float:
    """Seconds that a query may take which brings values of so many bytes."""
    return ANSWER_WITHIN + size / _SLOWEST


class Database:
    """Queries over at most `max_size` connections, each statement a transaction of its own.

    A pooled connection that was lost while it was idle (Postgres restarted, an operator ended it) is
    replaced before anything is sent on it, so the caller notices nothing. One lost while a statement ran
    is `DatabaseUnavailable`: whether the statement took effect isn't known, so it isn't sent again.
    """

    def __init__(self, url: str, *, application_name: str, max_size: int = 4) -> None:
        self._url = url
        self._application_name = application_name
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(max_size)
        self._closed = False

    @classmethod
    async def open(cls, url: str, *, application_name: str, max_size: int = 4) -> Self:
        """A database that has just answered.

        Raises:
            DatabaseUnavailable: Postgres can't be reached.
            SettingsError: `url` isn't a connection string.
            SetupError: Postgres is too old.
        """
        database = cls(url, application_name=application_name, max_size=max_size)
        database._idle.append(await connect_async(url, application_name=application_name))
        return database

    async def fetch(
        self, query: QueryNoTemplate, params: Params | None = None, *, within: float | None = None
    ) -> list[Row]:
        """All rows that a query returns.

        Args:
            query: its text.
            params: its parameters.
            within: seconds that it may take, waiting for a connection included; `ANSWER_WITHIN` by default.

        Raises:
            DatabaseNotReached: Postgres can't be reached, and nothing was sent.
            DatabaseUnavailable: it was lost, or didn't answer in time.
            DatabaseError: Postgres refused the statement.
        """
        async with self._connection(within) as connection:
            cursor = await connection.execute(query, params)
            return await cursor.fetchall()

    async def execute(self, query: QueryNoTemplate, params: Params | None = None) -> int:
        """Run a statement for its effect; returns how many rows it touched. Raises like `fetch`."""
        async with self._connection() as connection:
            return (await connection.execute(query, params)).rowcount

    @asynccontextmanager
    async def transaction(self, *, within: float | None = None) -> AsyncGenerator[Transaction]:
        """Several statements that take effect together, when the block ends, or not at all when it raises.

        Args:
            within: seconds that all of it may take; `ANSWER_WITHIN` by default.

        Raises:
            DatabaseUnavailable: Postgres can't be reached, or didn't answer in time. Whether the statements
                took effect isn't known.
            DatabaseError: Postgres refused a statement, and nothing took effect.
        """
        async with self._connection(within) as connection, connection.transaction():
            yield Transaction(connection)

    async def close(self) -> None:
        """Close the idle connections now, and those in use when their statement is done."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def _connection(self, within: float | None = None) -> AsyncGenerator[Connection]:
        within = ANSWER_WITHIN if within is None else within
        if self._closed:
            raise DatabaseUnavailable("the pool of database connections is closed")
        try:
            async with asyncio.timeout(within), self._room:
                connection = await self._take()
                try:
                    yield connection
                except psycopg.Error as error:
                    raise translate(self._url, error, connection_lost=connection.closed) from error
                finally:
                    await self._give_back(connection)
        except TimeoutError as error:
            raise unavailable(self._url, f"no answer within {within:g} s") from error

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not _has_news(connection):
                return connection
            await connection.close()
        return await connect_async(self._url, application_name=self._application_name)

    async def _give_back(self, connection: Connection) -> None:
        if self._closed or connection.info.transaction_status != TransactionStatus.IDLE:
            await connection.close()
        else:
            self._idle.append(connection)


class Transaction:
    """One transaction on one connection; made by `Database.transaction`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def fetch(self, query: QueryNoTemplate, params: Params | None = None) -> list[Row]:
        """All rows that a query returns. What goes wrong is raised by the whole transaction, in its words."""
        cursor = await self._connection.execute(query, params)
        return await cursor.fetchall()


def _has_news(connection: Connection) -> bool:
    """Whether the server said something unasked, which on an idle connection is nearly always its end.

    One system call, where asking the server would be a round trip for each query.
    """
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
