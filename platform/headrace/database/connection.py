"""How a connection is opened, and what its errors are called."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row

from headrace.database.queries import queries
from headrace.errors import (
    DatabaseBusy,
    DatabaseError,
    DatabaseNotReached,
    DatabaseUnavailable,
    SettingsError,
    SetupError,
)

Connection: TypeAlias = psycopg.AsyncConnection[DictRow]

OLDEST_POSTGRES: Final = 15

_SQL: Final = queries("listen")

_DEFAULTS: Final[dict[str, str]] = {
    "connect_timeout": "3",
    # A peer that vanished without a word is noticed after 5 + 2 * 3 seconds, also with data in flight.
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "11000",
}
_UNAVAILABLE_STATES: Final = ("08", "57P")
"""SQLSTATE prefixes that say "not now": lost connections, shutdown and start-up."""
_BUSY_STATES: Final = ("57014", "55P03", "40001", "40P01", "53", "25006")
"""Of what passes too: cancelled or timed out, a lock, a conflict, a deadlock, no room, a standby."""


def connect(url: str, *, application_name: str) -> psycopg.Connection[DictRow]:
    """A blocking autocommit connection with dict rows.

    Raises:
        DatabaseNotReached: Postgres can't be reached.
        SettingsError: `url` isn't a connection string.
        SetupError: Postgres is too old.
    """
    options = _options(url, application_name)
    try:
        connection = psycopg.Connection[DictRow].connect(**options, autocommit=True, row_factory=dict_row)
    except psycopg.Error as error:
        raise DatabaseNotReached(_unavailable(url, error)) from error
    try:
        check_version(connection.info.server_version)
    except SetupError:
        connection.close()
        raise
    return connection


async def connect_async(url: str, *, application_name: str) -> Connection:
    """Like `connect`, for the event loop."""
    options = _options(url, application_name)
    try:
        # Unprepared: behind a proxy that pools by transaction, the next statement may run in a backend
        # that doesn't know what the last one prepared.
        connection = await Connection.connect(
            **options, autocommit=True, row_factory=dict_row, prepare_threshold=None
        )
    except psycopg.Error as error:
        raise DatabaseNotReached(_unavailable(url, error)) from error
    try:
        check_version(connection.info.server_version)
    except SetupError:
        await connection.close()
        raise
    return connection


def check_version(server_version: int) -> None:
    """Refuse a server that lacks what the SQL needs.

    Args:
        server_version: as libpq reports it, e.g. 150004.

    Raises:
        SetupError: it is older than the oldest supported one.
    """
    if server_version < OLDEST_POSTGRES * 10_000:
        raise SetupError(
            f"Postgres {server_version // 10_000} is too old: {OLDEST_POSTGRES} or newer is needed"
        )


async def refuse_shared_backend(url: str, connection: Connection) -> None:
    """Refuse a proxy that lends the connection's backend to others between its transactions.

    A proxy gives itself away by a process id of its own in the greeting. It pools by transaction when
    another connection's transaction runs in the backend that `connection` has just used. Under heavy
    traffic the proxy may pick another backend, so passing proves nothing; failing does.

    Raises:
        DatabaseUnavailable: Postgres can't be reached.
        SetupError: it does; LISTEN and advisory locks would silently not work.
    """
    used = await _backend(connection)
    if used == connection.info.backend_pid:
        return
    other = await connect_async(url, application_name="headrace-probe")
    try:
        await other.execute(_SQL["begin"])
        if await _backend(other) == used:
            raise SetupError(
                "HEADRACE_DATABASE_DIRECT_URL leads to a transaction-pooling proxy: "
                "it must lead to Postgres itself, or to a proxy that pools by session"
            )
    finally:
        await other.close()


async def _backend(connection: Connection) -> int:
    row = await (await connection.execute(_SQL["prove"])).fetchone()
    assert row is not None
    return row["pid"]


def translate(url: str, error: psycopg.Error, *, connection_lost: bool) -> DatabaseError:
    """The platform's error for what psycopg raised on an open connection."""
    if connection_lost or (error.sqlstate or "").startswith(_UNAVAILABLE_STATES):
        return unavailable(url, error)
    kind = DatabaseBusy if (error.sqlstate or "").startswith(_BUSY_STATES) else DatabaseError
    return kind(f"Postgres refused: {_one_line(error.diag.message_primary or str(error))}")


def unavailable(url: str, reason: BaseException | str) -> DatabaseUnavailable:
    """An error of one line that names the server, never a password."""
    return DatabaseUnavailable(_unavailable(url, reason))


def _unavailable(url: str, reason: BaseException | str) -> str:
    known = conninfo_to_dict(url)
    text = _one_line(str(reason)).removeprefix("connection failed: ").removeprefix("consuming input failed: ")
    text = _nobody_listens(text) or text
    if password := known.get("password"):
        text = text.replace(str(password), "***")
    return f"Postgres at {_place(known)} can't be reached: {text}"


def _nobody_listens(text: str) -> str | None:
    """The short form of what libpq says in two sentences, when that is the cause at every address."""
    causes = re.findall(r" failed: (No such file or directory|Connection refused)", text)
    if not causes or len(causes) != text.count(" failed: "):
        return None
    if "Is the server running locally" in text:
        return "no server listens on that socket"
    return "connection refused, no server listens on that port"


def _options(url: str, application_name: str) -> dict[str, Any]:
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        # The text of the error may quote the password.
        raise SettingsError(
            "the database URL must look like postgresql://user:password@host:5432/database"
        ) from None
    return {"application_name": application_name, **_DEFAULTS, **given}


def _place(known: dict[str, Any]) -> str:
    host = str(known.get("host") or known.get("hostaddr") or "the default host")
    port = known.get("port")
    return f"{host}:{port}" if port and not host.startswith("/") else host


def _one_line(text: str) -> str:
    return " ".join(text.split())
