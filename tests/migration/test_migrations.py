from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from harness.postgres import query, terminate, wait_until

from headrace import queue
from headrace.errors import DatabaseError, DatabaseUnavailable, SchemaMismatch
from headrace.migrations import check, load, migrate

Write = Callable[..., Path]
PROCRASTINATE = f"procrastinate-{queue.SCHEMA_VERSION}"
TAKE_TURN = "SELECT pg_advisory_lock(hashtextextended('headrace.migrations', 0))"
WAITERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write migrations, given as `name=sql`, into a folder that is emptied before."""

    def write(**files: str) -> Path:
        for old in tmp_path.glob("*.sql"):
            old.unlink()
        for number, (name, sql) in enumerate(files.items(), start=1):
            (tmp_path / f"{number:04d}_{name}.sql").write_text(sql)
        return tmp_path

    return write


def has_table(url: str, name: str) -> bool:
    return query(url, "SELECT to_regclass(%s) IS NOT NULL", name) == [(True,)]


def test_empty_database_gets_every_step_in_order(empty_database_url: str) -> None:
    labels = [migration.label for migration in load()]
    assert migrate(empty_database_url) == [PROCRASTINATE, *labels]
    check(empty_database_url)
    recorded = query(empty_database_url, "SELECT version, checksum FROM schema_migration ORDER BY version")
    assert recorded == [(migration.version, migration.checksum) for migration in load()]
    assert query(empty_database_url, "SELECT name, version FROM schema_component") == [
        ("procrastinate", queue.installed_version())
    ]


def test_up_to_date_database_is_left_alone_and_quickly(database_url: str) -> None:
    took: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        assert migrate(database_url) == []
        took.append(time.perf_counter() - started)
    assert min(took) < 0.05


def test_two_processes_share_the_steps(empty_database_url: str) -> None:
    program = f"from headrace.migrations import migrate; print(*migrate({empty_database_url!r}), sep='\\n')"
    with psycopg.connect(empty_database_url, autocommit=True) as turn:
        turn.execute(TAKE_TURN)
        processes = [
            subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        both_wait = wait_until(lambda: query(empty_database_url, WAITERS) == [(2,)], seconds=30)
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert both_wait
    assert [process.returncode for process in processes] == [0, 0]
    steps = [PROCRASTINATE, *(migration.label for migration in load())]
    assert sorted("".join(outputs).split()) == sorted(steps)
    check(empty_database_url)


def test_failed_migration_leaves_nothing_behind_and_can_be_repeated(
    empty_database_url: str, write: Write
) -> None:
    first = "CREATE TABLE first (id integer);"
    broken = "CREATE TABLE second (id integer);\n\nINSERT INTO second VALUES (1), ('two');"
    with pytest.raises(
        DatabaseError, match=r"^0002_second failed and was rolled back: .*\(line 3\)$"
    ) as raised:
        migrate(empty_database_url, write(first=first, second=broken))
    assert not isinstance(raised.value, DatabaseUnavailable)
    assert has_table(empty_database_url, "first")
    assert not has_table(empty_database_url, "second")

    mended = write(first=first, second=broken.replace("'two'", "2"))
    assert migrate(empty_database_url, mended) == ["0002_second"]
    check(empty_database_url, mended)


def test_changed_migration_is_refused(empty_database_url: str, write: Write) -> None:
    migrate(empty_database_url, write(first="CREATE TABLE first (id integer);"))
    changed = write(first="CREATE TABLE first (id bigint);", second="CREATE TABLE second (id integer);")
    for refuse in (migrate, check):
        with pytest.raises(SchemaMismatch, match=r"^0001_first\.sql isn't what was applied"):
            refuse(empty_database_url, changed)
    assert not has_table(empty_database_url, "second")


def test_newer_database_is_refused(empty_database_url: str, write: Write) -> None:
    first = "CREATE TABLE first (id integer);"
    migrate(empty_database_url, write(first=first, second="CREATE TABLE second (id integer);"))
    older = write(first=first)
    for refuse in (migrate, check):
        with pytest.raises(SchemaMismatch, match=r"newer than this program \(it has 0002_second\)"):
            refuse(empty_database_url, older)


def test_database_that_lost_a_record_is_refused(empty_database_url: str, write: Write) -> None:
    source = write(first="CREATE TABLE first (id integer);", second="CREATE TABLE second (id integer);")
    migrate(empty_database_url, source)
    query(empty_database_url, "DELETE FROM schema_migration WHERE version = 1")
    with pytest.raises(SchemaMismatch, match="no record of 0001_first"):
        migrate(empty_database_url, source)


def test_check_names_what_is_missing_and_what_to_do(empty_database_url: str, write: Write) -> None:
    source = write(first="SELECT 1;", second="SELECT 2;")
    with pytest.raises(SchemaMismatch) as raised:
        check(empty_database_url, source)
    assert str(raised.value) == (
        f"the database lacks {PROCRASTINATE}, 0001_first, 0002_second: run `headrace migrate`"
    )
    assert not has_table(empty_database_url, "schema_migration")


@pytest.mark.parametrize(
    "names", [["0001_a.sql", "0003_b.sql"], ["0001_a.sql", "0001_b.sql"], ["0002_a.sql"]]
)
def test_numbers_run_without_gap_or_repetition(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(SchemaMismatch, match="is missing or taken twice"):
        load(tmp_path)


def test_file_with_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1-first.sql").write_text("SELECT 1;")
    with pytest.raises(SchemaMismatch, match=r"1-first\.sql must be called NNNN_name\.sql"):
        load(tmp_path)


def test_procrastinate_of_another_minor_is_refused(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query(database_url, "UPDATE schema_component SET version = '3.9.2' WHERE name = 'procrastinate'")
    with pytest.raises(SchemaMismatch, match=r"^Procrastinate 3\.9\.2 is in the database"):
        check(database_url)
    query(database_url, "UPDATE schema_component SET version = '3.10.9' WHERE name = 'procrastinate'")
    check(database_url)
    monkeypatch.setattr(queue, "installed_version", lambda: "3.11.0")
    with pytest.raises(SchemaMismatch, match=r"^Procrastinate 3\.11\.0 is installed"):
        check(database_url)


def test_connection_lost_on_the_way_is_unavailable(empty_database_url: str) -> None:
    raised: list[Exception] = []

    def attempt() -> None:
        try:
            migrate(empty_database_url)
        except DatabaseUnavailable as error:
            raised.append(error)

    with psycopg.connect(empty_database_url, autocommit=True) as turn:
        turn.execute(TAKE_TURN)
        thread = threading.Thread(target=attempt)
        thread.start()
        waits = wait_until(lambda: query(empty_database_url, WAITERS) == [(1,)], seconds=30)
        assert terminate(empty_database_url, "headrace-migrate") == 1
        thread.join(30)
    assert waits
    assert len(raised) == 1
