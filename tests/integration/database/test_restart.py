from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.database import Database, Listener
from headrace.embedded import EmbeddedPostgres
from headrace.errors import DatabaseNotReached


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    with EmbeddedPostgres(folder) as postgres:
        yield postgres
    shutil.rmtree(folder, ignore_errors=True)


def test_all_recovers_after_postgres_was_away(server: EmbeddedPostgres) -> None:
    connected = asyncio.Event()

    async def scenario() -> None:
        database = await Database.open(server.url, application_name="headrace-test")
        listener = Listener(server.url, ["fish"], lambda channel, payload: None, connected.set)
        running = asyncio.create_task(listener.run())
        async with asyncio.timeout(10):
            await connected.wait()
        connected.clear()

        await asyncio.to_thread(server.stop)
        with pytest.raises(DatabaseNotReached):
            await database.fetch("SELECT 1")
        async with asyncio.timeout(10):
            while listener.connected:
                await asyncio.sleep(0.01)

        await asyncio.to_thread(server.start)
        assert await database.fetch("SELECT 1 AS one") == [{"one": 1}]
        async with asyncio.timeout(10):
            await connected.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await database.close()

    asyncio.run(scenario())
