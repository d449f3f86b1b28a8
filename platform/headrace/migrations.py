"""Bring a database's schema to what this program was built for, or say why it isn't.

Each step runs in a transaction of its own that first takes a lock and looks again at what is applied, so
any number of processes may migrate at once: each step is done by exactly one of them. Procrastinate's own
schema is the first step; then come the files of `sql/migrations` in the order of their numbers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final, LiteralString, cast

import psycopg
from psycopg.rows import DictRow

from headrace import queue
from headrace.database.connection import connect, translate
from headrace.database.queries import queries
from headrace.errors import DatabaseError, SchemaMismatch

_SQL: Final = queries("migrations")
_FILE: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_APPLICATION: Final = "headrace-migrate"

Connection = psycopg.Connection[DictRow]


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    sql: LiteralString
    checksum: str

    @property
    def label(self) -> str:
        """The file's name without its suffix."""
        return f"{self.version:04d}_{self.name}"


@dataclass(frozen=True, slots=True)
class _State:
    """What a database says of itself: checksums by migration, and Procrastinate's version if it is there."""

    applied: Mapping[int, tuple[str, str]]
    procrastinate: str | None


def load(source: Traversable | None = None) -> list[Migration]:
    """The migrations in `source` (the package's own by default), in order.

    Raises:
        SchemaMismatch: a file isn't called `NNNN_name.sql`, or a number is missing or taken twice.
    """
    folder = source or resources.files("headrace") / "sql" / "migrations"
    found: list[Migration] = []
    for file in sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda f: f.name
    ):
        match = _FILE.fullmatch(file.name)
        if match is None:
            raise SchemaMismatch(f"the migration {file.name} must be called NNNN_name.sql")
        content = file.read_bytes()
        # The text is the program's own, as if it stood here; no input ever reaches it.
        text = cast(LiteralString, content.decode())
        found.append(Migration(int(match[1]), match[2], text, hashlib.sha256(content).hexdigest()))
    for expected, migration in enumerate(found, start=1):
        if migration.version != expected:
            raise SchemaMismatch(
                f"migration {expected:04d} is missing or taken twice, near {migration.label}.sql"
            )
    return found


def migrate(url: str, source: Traversable | None = None) -> list[str]:
    """Apply what is missing, and return the labels of what this call applied.

    Raises:
        DatabaseUnavailable: Postgres can't be reached.
        DatabaseError: a step failed and was rolled back; the steps before it stay.
        SchemaMismatch: the database is newer than this program, or an applied file was changed or is gone.
    """
    migrations = load(source)
    done: list[str] = []
    with connect(url, application_name=_APPLICATION) as connection:
        try:
            while _pending(_read_state(connection), migrations):
                if (label := _step(connection, migrations)) is not None:
                    done.append(label)
        except psycopg.Error as error:
            raise translate(url, error, connection_lost=connection.broken) from error
    return done


def check(url: str, source: Traversable | None = None) -> None:
    """Pass when the database's schema is exactly this program's.

    Raises:
        DatabaseUnavailable: Postgres can't be reached.
        SchemaMismatch: it isn't; the message says what to do.
    """
    migrations = load(source)
    with connect(url, application_name=_APPLICATION) as connection:
        try:
            pending = _pending(_read_state(connection), migrations)
        except psycopg.Error as error:
            raise translate(url, error, connection_lost=connection.broken) from error
    if pending:
        raise SchemaMismatch(f"the database lacks {', '.join(pending)}: run `headrace migrate`")


def _step(connection: Connection, migrations: Sequence[Migration]) -> str | None:
    """Apply the first missing step in one transaction; None when another process was quicker."""
    with connection.transaction():
        connection.execute(_SQL["take_turn"])
        connection.execute(_SQL["create_tables"])
        state = _read_state(connection)
        if not _pending(state, migrations):
            return None
        if state.procrastinate is None:
            label, script = _procrastinate_label(), queue.schema()
            record, row = (
                _SQL["record_component"],
                {"name": "procrastinate", "version": queue.installed_version()},
            )
        else:
            migration = migrations[len(state.applied)]
            label, script = migration.label, migration.sql
            record = _SQL["record_migration"]
            row = {"version": migration.version, "name": migration.name, "checksum": migration.checksum}
        try:
            connection.execute(script)
        except psycopg.Error as error:
            if connection.broken:
                raise
            raise DatabaseError(f"{label} failed and was rolled back: {_explain(error, script)}") from error
        connection.execute(record, row)
        return label


def _read_state(connection: Connection) -> _State:
    if connection.execute(_SQL["has_tables"]).fetchone() != {"found": True}:
        return _State({}, None)
    rows = connection.execute(_SQL["applied"]).fetchall()
    component = connection.execute(_SQL["component"], {"name": "procrastinate"}).fetchone()
    return _State(
        {row["version"]: (row["name"], row["checksum"]) for row in rows},
        component["version"] if component else None,
    )


def _pending(state: _State, migrations: Sequence[Migration]) -> list[str]:
    """The labels of the missing steps, once what is applied has been found to be ours."""
    _check_procrastinate(state.procrastinate)
    for version, (name, checksum) in state.applied.items():
        label = f"{version:04d}_{name}"
        if version > len(migrations):
            raise SchemaMismatch(
                f"the database is newer than this program (it has {label}): "
                "install the release that made it, or a newer one"
            )
        if migrations[version - 1].checksum != checksum:
            raise SchemaMismatch(
                f"{label}.sql isn't what was applied to this database: "
                "restore the file, and put the change into a new migration"
            )
    if len(state.applied) != max(state.applied, default=0):
        missing = min(set(range(1, max(state.applied))) - set(state.applied))
        raise SchemaMismatch(
            f"the database has no record of {migrations[missing - 1].label}, but of later ones: "
            "restore its table schema_migration from a backup"
        )
    steps = [] if state.procrastinate else [_procrastinate_label()]
    return steps + [migration.label for migration in migrations[len(state.applied) :]]


def _check_procrastinate(recorded: str | None) -> None:
    installed = queue.installed_version()
    for version, holder in ((installed, "installed"), (recorded, "in the database")):
        if version is not None and _minor(version) != queue.SCHEMA_VERSION:
            raise SchemaMismatch(
                f"Procrastinate {version} is {holder}, but this program needs {queue.SCHEMA_VERSION}: "
                f'install "procrastinate=={queue.SCHEMA_VERSION}.*" and the matching release of headrace'
            )


def _procrastinate_label() -> str:
    return f"procrastinate-{queue.SCHEMA_VERSION}"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _explain(error: psycopg.Error, script: str) -> str:
    message = " ".join((error.diag.message_primary or str(error)).split())
    position = error.diag.statement_position
    line = f" (line {script.count(chr(10), 0, int(position)) + 1})" if position else ""
    return message + line
