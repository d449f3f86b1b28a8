"""Behind PgBouncer, where one is installed: `DATABASE_URL` may lead through it, the direct one may not."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from harness.listening import hearing
from harness.postgres import wait_until
from psycopg.conninfo import conninfo_to_dict

from headrace import keys
from headrace.database import Database, Listener
from headrace.embedded.account import USER
from headrace.errors import SetupError

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer isn't installed")


@pytest.fixture
def proxy(database_url: str, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Start a proxy to the test's database in a pool mode; returns its URL."""
    started: list[subprocess.Popen[bytes]] = []

    def start(mode: str) -> str:
        place = conninfo_to_dict(database_url)
        name = str(place["dbname"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        behind = " ".join(f"{key}={value}" for key, value in place.items())
        settings = tmp_path / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n{name} = {behind}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
            f"auth_type = any\npool_mode = {mode}\nunix_socket_dir =\n"
        )
        assert PGBOUNCER is not None
        command = [PGBOUNCER, "-q", str(settings)]
        if os.geteuid() == 0:
            for folder in (tmp_path, *tmp_path.parents):
                folder.chmod(folder.stat().st_mode | 0o001)
            settings.chmod(0o644)
            command += ["-u", USER]
        started.append(subprocess.Popen(command))
        url = f"postgresql://{quote(str(place['user']))}@127.0.0.1:{port}/{name}"
        assert wait_until(lambda: answers(url), seconds=10)
        return url

    yield start
    for process in started:
        process.terminate()
        process.wait(10)


def answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_listening_is_refused_where_transactions_are_pooled(proxy: Callable[[str], str]) -> None:
    url = proxy("transaction")
    listener = Listener(url, ["fish"], lambda channel, payload: None, lambda: None)
    with pytest.raises(SetupError, match="HEADRACE_DATABASE_DIRECT_URL leads to a transaction-pooling proxy"):
        asyncio.run(asyncio.wait_for(listener.run(), 10))


def test_listening_works_where_sessions_are_pooled(proxy: Callable[[str], str]) -> None:
    async def scenario() -> None:
        url = proxy("session")
        async with (
            await Database.open(url, application_name="headrace-test") as database,
            hearing(url, keys.CHANNEL) as heard,
            asyncio.timeout(10),
        ):
            await keys.create_key(database, "ada")
            assert await heard.get()

    asyncio.run(scenario())


def test_queries_work_where_transactions_are_pooled(proxy: Callable[[str], str]) -> None:
    async def scenario() -> None:
        url = proxy("transaction")
        async with await Database.open(url, application_name="headrace-test") as database:
            secret = keys.hash_key(await keys.create_key(database, "ada"))
            for _ in range(10):  # psycopg would prepare from the sixth on
                found = await asyncio.gather(*(keys.find_owner(database, secret) for _ in range(4)))
                assert all(found)

    asyncio.run(scenario())
