"""Embedded servers seen from outside: who holds them, and whether they live."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

HOLDER = """
import sys
from pathlib import Path
from headrace.embedded import EmbeddedPostgres
postgres = EmbeddedPostgres(Path(sys.argv[1]))
postgres.start()
print(postgres.url, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holder(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the server; it lets go when its standard input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline().startswith("postgresql://")
        yield process
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def postmaster_pid(home: Path) -> int:
    return int((home / "postgres" / "postmaster.pid").read_text().split()[0])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        assert select.select([descriptor], [], [], 20)[0]
    finally:
        os.close(descriptor)


def answer(url: str, query: str = "SELECT current_database()") -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def write_a_row(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS value")


def wait_until_gone(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        wait_for_end(pid)


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A disk of that size, where the machine lets root mount one."""
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp")).resolve()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        if not mounted:
            pytest.skip("only root on a machine of its own may mount a small disk")
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()
