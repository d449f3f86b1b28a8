"""A Postgres for tests: one server a session, one migrated template, one clone a test."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from headrace.embedded import EmbeddedPostgres
from headrace.migrations import migrate

EXTERNAL_SERVER = "HEADRACE_TEST_DATABASE_URL"
"""Names another server to test on; its role must be allowed to create databases."""

_FAST = ("fsync", "synchronous_commit", "full_page_writes")
"""Nothing in a test's database outlives the session, so none of it need reach the disk."""


def with_database(url: str, name: str) -> str:
    """The URL of another database on the same server."""
    return urlsplit(url)._replace(path=f"/{name}").geturl()


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The URL of a running server: the one that the environment names, or a fresh embedded one."""
    if external := os.environ.get(EXTERNAL_SERVER):
        yield external
        return
    # Short, for the socket's path, and open, for the user that Postgres runs as under root.
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    try:
        with EmbeddedPostgres(folder) as embedded:
            with psycopg.connect(embedded.url, autocommit=True) as connection:
                for name in _FAST:
                    connection.execute(sql.SQL("ALTER SYSTEM SET {} = off").format(sql.Identifier(name)))
                connection.execute("SELECT pg_reload_conf()")
            yield embedded.url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def clones(server_url: str) -> Iterator[Clones]:
    """A maker of databases on that server."""
    made = Clones(server_url)
    try:
        yield made
    finally:
        made.close()


class Clones:
    """Databases made from one template, each dropped when its user is done."""

    def __init__(self, server_url: str) -> None:
        self.server_url = server_url
        self._run = uuid.uuid4().hex[:8]
        self._template = f"headrace_template_{self._run}"
        self._count = 0
        self._admin = psycopg.connect(server_url, autocommit=True)
        self._admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self._template)))
        migrate(with_database(server_url, self._template))

    def close(self) -> None:
        self._drop(self._template)
        self._admin.close()

    @contextlib.contextmanager
    def empty(self) -> Iterator[str]:
        """The URL of a database without Headrace's schema."""
        with self._database("template1") as url:
            yield url

    @contextlib.contextmanager
    def migrated(self) -> Iterator[str]:
        """The URL of a database with the newest schema.

        Raises:
            AssertionError: a connection is still open two seconds after its user was done.
        """
        with self._database(self._template) as url:
            yield url

    @contextlib.contextmanager
    def _database(self, template: str) -> Iterator[str]:
        self._count += 1
        name = f"headrace_test_{self._run}_{self._count}"
        self._admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        try:
            yield with_database(self.server_url, name)
            leaked = self._leaked(name)
        finally:
            self._drop(name)
        assert not leaked, f"connections left open: {leaked}"

    def _leaked(self, name: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []

        def none_left() -> bool:
            found[:] = self._admin.execute(
                "SELECT application_name, left(query, 200) FROM pg_stat_activity"
                " WHERE datname = %s AND backend_type = 'client backend'",
                (name,),
            ).fetchall()
            return not found

        if not wait_until(none_left, seconds=2):
            gc.collect()  # one that was being opened when its pool was closed is closed with its object
            wait_until(none_left, seconds=2)
        return found

    def _drop(self, name: str) -> None:
        self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def wait_until(condition: Callable[[], bool], *, seconds: float, pause: float = 0.01) -> bool:
    """Whether the condition came true in time; for what can't be awaited as an event."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def terminate(url: str, application_name: str) -> int:
    """End all connections of that name to the database, and wait until they are gone; returns how many."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s AND pid <> pg_backend_pid()",
            (application_name,),
        ).fetchall()
    assert all(ended for (ended,) in rows)
    return len(rows)


def query(url: str, statement: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of one statement on a connection of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []
