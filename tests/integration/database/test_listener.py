from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from harness.postgres import EXTERNAL_SERVER, query, terminate

from headrace.database import Listener, listener

NAME = "headrace-listen"
BACKEND = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"


class Ear:
    """A listener and what it reported, in order: `connected`, or a channel and its payload."""

    def __init__(self, url: str) -> None:
        self.heard: asyncio.Queue[str | tuple[str, str]] = asyncio.Queue()
        self.fail_next = False
        self.listener = Listener(url, ["fish", "Odd name"], self._notified, self._connected)

    async def next(self) -> str | tuple[str, str]:
        async with asyncio.timeout(10):
            return await self.heard.get()

    async def _notified(self, channel: str, payload: str) -> None:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the callback is broken")
        await self.heard.put((channel, payload))

    def _connected(self) -> None:
        self.heard.put_nowait("connected")


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Ear]:
    ear = Ear(url)
    running = asyncio.create_task(ear.listener.run())
    try:
        assert await ear.next() == "connected"
        yield ear
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not ear.listener.connected


async def notify(url: str, channel: str, payload: str) -> None:
    await asyncio.to_thread(query, url, "SELECT pg_notify(%s, %s)", channel, payload)


def test_notifications_arrive_in_order_on_all_channels(database_url: str) -> None:
    async def scenario() -> None:
        async with listening(database_url) as ear:
            for channel, payload in (("fish", "a"), ("Odd name", ""), ("fish", "b")):
                await notify(database_url, channel, payload)
            assert [await ear.next() for _ in range(3)] == [("fish", "a"), ("Odd name", ""), ("fish", "b")]
            assert ear.listener.connected

    asyncio.run(scenario())


def test_lost_connection_is_replaced_and_everything_read_again(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with listening(database_url) as ear:
            for word in ("first", "second"):
                assert await asyncio.to_thread(terminate, database_url, NAME) == 1
                assert await ear.next() == "connected"
                await notify(database_url, "fish", word)
                assert await ear.next() == ("fish", word)

    asyncio.run(scenario())
    assert caplog.text.count("listening failed: Postgres at") == 2


def test_proof_of_life_is_renewed_without_notifications(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PROOF_EVERY", 0.05)

    async def scenario() -> None:
        async with listening(database_url) as ear:
            first = ear.listener.last_seen
            assert first <= time.monotonic()
            async with asyncio.timeout(10):
                while ear.listener.last_seen < first + 0.1:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_listener_never_holds_a_transaction(database_url: str) -> None:
    async def scenario() -> None:
        async with listening(database_url) as ear:
            await notify(database_url, "fish", "a")
            await ear.next()
            states = await asyncio.to_thread(
                query,
                database_url,
                "SELECT state, xact_start FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = %s",
                NAME,
            )
            assert states == [("idle", None)]

    asyncio.run(scenario())


def test_failing_callback_is_reported_and_everything_read_again(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with listening(database_url) as ear:
            ear.fail_next = True
            await notify(database_url, "fish", "dropped")
            assert await ear.next() == "connected"
            await notify(database_url, "fish", "kept")
            assert await ear.next() == ("fish", "kept")

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "the callback is broken" in caplog.text


def test_pauses_grow_to_a_bound() -> None:
    assert 0.05 <= listener._pause(1) <= 0.1
    assert all(1 <= listener._pause(failures) <= 2 for failures in (10, 100, 10_000))


@pytest.mark.skipif(EXTERNAL_SERVER in os.environ, reason="its backends may be another machine's processes")
def test_frozen_server_is_given_up_and_found_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend accepts what is sent and says nothing: only the proof of life shows it."""
    monkeypatch.setattr(listener, "PROOF_EVERY", 0.05)
    monkeypatch.setattr(listener, "PROOF_WITHIN", 0.2)

    async def scenario() -> None:
        async with listening(database_url) as ear:
            ((backend,),) = await asyncio.to_thread(query, database_url, BACKEND, NAME)
            os.kill(backend, signal.SIGSTOP)
            try:
                async with asyncio.timeout(20):
                    assert await ear.heard.get() == "connected"
                await notify(database_url, "fish", "a")
                assert await ear.next() == ("fish", "a")
            finally:
                os.kill(backend, signal.SIGCONT)

    asyncio.run(scenario())
