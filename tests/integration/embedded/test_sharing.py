"""Real servers in short folders: what starts them, and what stops them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from harness.servers import (
    HOLDER,
    answer,
    holder,
    is_alive,
    postmaster_pid,
    write_a_row,
)

from headrace.embedded import EmbeddedPostgres


def test_it_serves_its_database_and_is_down_after_stop(empty_home: Path) -> None:
    postgres = EmbeddedPostgres(empty_home)
    url = postgres.url

    with postgres:
        assert postgres.url == url
        assert answer(url) == "headrace"
        assert answer(url, "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'") == 1
        assert answer(url, "SHOW listen_addresses") == ""
        assert stat.S_IMODE((empty_home / "postgres").stat().st_mode) == 0o700
        pid = postmaster_pid(empty_home)
        assert postgres.is_running()

    assert not is_alive(pid)
    assert not postgres.is_running()
    assert not (empty_home / "postgres" / "postmaster.pid").exists()


def test_data_outlive_the_server(home: Path) -> None:
    with EmbeddedPostgres(home) as postgres:
        write_a_row(postgres.url)
    with EmbeddedPostgres(home) as postgres:
        assert answer(postgres.url, "SELECT value FROM kept") == 42


@pytest.mark.parametrize("name", ["a folder, per%cent'\"quotes Übung", "x" * 120], ids=lambda n: n[:8])
def test_any_name_of_a_folder_will_do(empty_home: Path, name: str) -> None:
    with EmbeddedPostgres(empty_home / name) as postgres:
        assert answer(postgres.url) == "headrace"
        assert len(os.fsencode(postgres.socket_folder)) < 90
        assert stat.S_IMODE(postgres.socket_folder.stat().st_mode) == 0o700
    if postgres.socket_folder.parent == Path("/tmp"):
        shutil.rmtree(postgres.socket_folder)


def test_variables_of_libpq_do_not_lead_it_astray(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGPORT", "6000")
    with EmbeddedPostgres(home):
        assert (home / "postgres" / ".s.PGSQL.5432").is_socket()


def test_two_handles_in_one_process_share_it(home: Path) -> None:
    with EmbeddedPostgres(home) as first:
        with EmbeddedPostgres(home) as second:
            pid = postmaster_pid(home)
            assert first.url == second.url
        assert postmaster_pid(home) == pid
        assert answer(first.url) == "headrace"
    assert not is_alive(pid)


def test_starting_and_stopping_again_is_harmless(home: Path) -> None:
    postgres = EmbeddedPostgres(home)
    postgres.stop()
    postgres.start()
    postgres.start()
    postgres.stop()
    postgres.stop()
    assert not postgres.is_running()


def test_the_last_of_several_processes_stops_it(home: Path) -> None:
    with holder(home), EmbeddedPostgres(home) as postgres:
        pid = postmaster_pid(home)
        with holder(home):
            assert postmaster_pid(home) == pid
        assert answer(postgres.url) == "headrace"
    assert not is_alive(pid)


def test_the_process_that_started_it_may_leave_first(home: Path) -> None:
    with holder(home) as first:
        pid = postmaster_pid(home)
        with EmbeddedPostgres(home) as postgres:
            first.communicate("")
            assert answer(postgres.url) == "headrace"
            assert postmaster_pid(home) == pid
        assert not is_alive(pid)


def test_the_last_of_the_visitors_stops_what_one_of_them_started(home: Path) -> None:
    first, second = EmbeddedPostgres(home, visits=True), EmbeddedPostgres(home, visits=True)
    first.start()
    pid = postmaster_pid(home)
    second.start()
    first.stop()
    assert is_alive(pid)
    second.stop()
    assert not is_alive(pid)


def test_many_starters_at_once_get_one_server(empty_home: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", HOLDER, str(empty_home)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(4)
        ]
        urls = {process.stdout.readline() for process in processes if process.stdout}
        pid = postmaster_pid(empty_home)
        assert urls == {EmbeddedPostgres(empty_home).url + "\n"}
        for process in processes:
            process.communicate("")
    assert not is_alive(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests show it: they run as an ordinary user")
def test_it_works_for_an_ordinary_user_too(empty_home: Path) -> None:
    # The interpreter may lie in a folder of root's alone: so everything is loaded before root is given up.
    code = f"""
import os, pathlib, atexit, psycopg
from headrace.embedded import EmbeddedPostgres
psycopg.connect  # loads its C library
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with EmbeddedPostgres(pathlib.Path({str(empty_home)!r}) / "of nobody") as postgres:
    with psycopg.connect(postgres.url) as connection:
        print(connection.execute("SELECT current_database()").fetchone()[0], flush=True)
    print((postgres.data / "postmaster.pid").stat().st_uid)
print(postgres.is_running())
"""
    empty_home.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout == "headrace\n65534\nFalse\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's Postgres is another user's")
def test_as_root_closed_folders_above_the_data_become_passable_and_nothing_more(empty_home: Path) -> None:
    closed = empty_home / "closed"
    closed.mkdir(mode=0o700)
    secret = closed / "key"
    secret.touch(mode=0o600)

    with EmbeddedPostgres(closed / "home") as postgres:
        assert answer(postgres.url) == "headrace"
        assert (closed / "home" / "postgres").stat().st_uid != 0

    assert stat.S_IMODE(closed.stat().st_mode) == 0o701
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
