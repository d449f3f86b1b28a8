from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from harness.postgres import query, terminate, wait_until

from headrace.database import Database, pool
from headrace.database.connection import check_version
from headrace.errors import (
    DatabaseBusy,
    DatabaseError,
    DatabaseNotReached,
    DatabaseUnavailable,
    SettingsError,
    SetupError,
)

NAME = "headrace-test"
RUNNING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = %s AND state = 'active'"
)


@asynccontextmanager
async def opened(url: str, max_size: int = 4) -> AsyncIterator[Database]:
    async with await Database.open(url, application_name=NAME, max_size=max_size) as database:
        yield database


async def use_all(database: Database, count: int) -> set[int]:
    """The backends that serve `count` queries at once."""
    answers = await asyncio.gather(
        *(database.fetch("SELECT pg_backend_pid() AS pid, pg_sleep(0.05)") for _ in range(count))
    )
    return {rows[0]["pid"] for rows in answers}


async def runs(url: str, count: int) -> bool:
    return await asyncio.to_thread(wait_until, lambda: query(url, RUNNING, NAME) == [(count,)], seconds=10)


def test_rows_are_dicts_and_effects_are_committed_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            await database.execute("CREATE TABLE seen (id integer, word text)")
            touched = await database.execute("INSERT INTO seen VALUES (%s, %s), (2, 'b')", (1, "a"))
            assert touched == 2
            rows = await database.fetch("SELECT * FROM seen WHERE id < %(limit)s", {"limit": 2})
            assert rows == [{"id": 1, "word": "a"}]
            assert await asyncio.to_thread(query, database_url, "SELECT count(*) FROM seen") == [(2,)]

    asyncio.run(scenario())


def test_connections_are_bounded_and_reused(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, max_size=2) as database:
            first = await use_all(database, 7)
            assert len(first) == 2
            assert await use_all(database, 7) == first

    asyncio.run(scenario())


def test_connections_killed_while_idle_are_replaced_unnoticed(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, max_size=3) as database:
            before = await use_all(database, 3)
            assert await asyncio.to_thread(terminate, database_url, NAME) == 3
            assert before.isdisjoint(await use_all(database, 3))

    asyncio.run(scenario())


def test_statement_whose_connection_is_killed_is_unavailable_and_not_repeated(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            running = asyncio.create_task(database.fetch("SELECT pg_sleep(60)"))
            assert await runs(database_url, 1)
            await asyncio.to_thread(terminate, database_url, NAME)
            with pytest.raises(DatabaseUnavailable, match="terminating connection"):
                await running
            assert await database.fetch("SELECT 1 AS one") == [{"one": 1}]

    asyncio.run(scenario())


def test_cancelled_query_ends_on_the_server_too_and_frees_its_connection(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, max_size=1) as database:
            running = asyncio.create_task(database.fetch("SELECT pg_sleep(60)"))
            assert await runs(database_url, 1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await database.fetch("SELECT 1 AS one") == [{"one": 1}]
            assert await runs(database_url, 0)

    asyncio.run(scenario())


def test_slow_answer_is_unavailable(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "ANSWER_WITHIN", 0.3)

    async def scenario() -> None:
        async with opened(database_url) as database:
            with pytest.raises(DatabaseUnavailable, match=r"no answer within 0\.3 s") as raised:
                await database.fetch("SELECT pg_sleep(60)")
            assert not isinstance(raised.value, DatabaseNotReached)  # it may have taken effect
            assert await database.fetch("SELECT 1 AS one") == [{"one": 1}]

    asyncio.run(scenario())


def test_refused_statement_is_a_database_error_with_its_cause(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            with pytest.raises(DatabaseError, match=r'^Postgres refused: relation "nowhere"') as raised:
                await database.fetch("SELECT * FROM nowhere")
            assert not isinstance(raised.value, DatabaseUnavailable)
            assert isinstance(raised.value.__cause__, psycopg.errors.UndefinedTable)

    asyncio.run(scenario())


def test_closed_database_answers_no_more(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as database:
            running = asyncio.create_task(database.fetch("SELECT 1 AS one FROM pg_sleep(0.2)"))
            assert await runs(database_url, 1)
            await database.close()
            assert await running == [{"one": 1}]
            with pytest.raises(DatabaseUnavailable, match="closed"):
                await database.fetch("SELECT 1")

    asyncio.run(scenario())


def test_dead_port_is_one_line_that_names_the_place_but_no_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"postgresql://someone:hunter2@127.0.0.1:{taken.getsockname()[1]}/headrace"
        with pytest.raises(DatabaseNotReached) as raised:
            asyncio.run(Database.open(url, application_name=NAME))
        message = str(raised.value)
        assert message.startswith(f"Postgres at 127.0.0.1:{taken.getsockname()[1]} can't be reached: ")
        assert "refused" in message
        assert "\n" not in message
        assert "hunter2" not in message


def test_unknown_database_is_unavailable(database_url: str) -> None:
    url = database_url.replace("headrace_test_", "headrace_nowhere_")
    with pytest.raises(DatabaseUnavailable, match="does not exist"):
        asyncio.run(Database.open(url, application_name=NAME))


def test_url_that_is_none_is_refused_without_being_repeated() -> None:
    with pytest.raises(SettingsError, match="postgresql://") as raised:
        asyncio.run(Database.open("host=a hunter2", application_name=NAME))
    assert "hunter2" not in str(raised.value)


def test_old_server_is_refused() -> None:
    check_version(150000)
    with pytest.raises(SetupError, match="Postgres 14 is too old: 15 or newer"):
        check_version(140012)


def test_lost_peers_are_noticed_within_seconds(database_url: str) -> None:
    async def scenario() -> dict[str, str]:
        async with opened(database_url) as database:
            (connection,) = database._idle
            return connection.info.get_parameters()

    parameters = asyncio.run(scenario())
    expected = {
        "keepalives": "1",
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "tcp_user_timeout": "11000",
    }
    # libpq lists only what differs from its own default, and keepalives=1 doesn't.
    assert {name: parameters.get(name, "1") for name in expected} == expected


def test_transaction_left_open_does_not_reach_the_next_caller(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url, max_size=1) as database:
            await database.execute("BEGIN; CREATE TABLE half_done (id integer)")
            assert await database.fetch("SELECT to_regclass('half_done') AS found") == [{"found": None}]

    asyncio.run(scenario())


@pytest.mark.parametrize("state", ["57014", "55P03", "40001", "40P01", "53300", "25006"])
def test_a_refusal_that_passes_is_told_apart(database_url: str, state: str) -> None:
    raising = f"DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END $$"

    async def scenario() -> None:
        async with await Database.open(database_url, application_name="headrace-test") as database:
            with pytest.raises(DatabaseBusy, match="Postgres refused: not now"):
                await database.execute(raising.encode())
            with pytest.raises(DatabaseError) as caught:
                await database.execute("SELECT nothing")
            assert not isinstance(caught.value, DatabaseBusy)

    asyncio.run(scenario())
