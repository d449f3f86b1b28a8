"""The one LISTEN connection of a process."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from time import monotonic
from typing import Final, TypeAlias

import psycopg
from psycopg import sql

from headrace.database.connection import (
    Connection,
    connect_async,
    refuse_shared_backend,
    translate,
    unavailable,
)
from headrace.database.queries import queries
from headrace.errors import HeadraceError, SettingsError, SetupError

_log = logging.getLogger(__name__)
_SQL: Final = queries("listen")

PROOF_EVERY: Final = 1.0
"""Seconds between two proofs that Postgres answers."""
PROOF_WITHIN: Final = 3.0
"""Seconds after which an unanswered proof means a lost connection."""
_SHORTEST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

OnNotify: TypeAlias = Callable[[str, str], Awaitable[None] | None]
OnConnected: TypeAlias = Callable[[], Awaitable[None] | None]


class Listener:
    """Hears notifications on a direct connection of its own, for ever.

    What is sent while there is no connection is lost, so `on_connected` runs after each LISTEN: read
    everything again there. The callbacks, plain or async, run in order and one at a time; an exception in
    one of them gives the connection up, and the next one starts with `on_connected`.

    Args:
        url: a direct connection, not one through a transaction-pooling proxy.
        channels: what to listen to.
        on_notify: called with channel and payload of each notification.
        on_connected: called after each connect, when LISTEN is already in force.
        on_lost: called when such a connection is lost.
        holds: the id of a runner's session whose lock the connection holds: from before LISTEN to its end, so
            that others see the runner's end. After 3 s at most this end notices that the connection is half
            open, well before Postgres does, which lets go of the lock then.
    """

    def __init__(
        self,
        url: str,
        channels: Sequence[str],
        on_notify: OnNotify,
        on_connected: OnConnected,
        *,
        on_lost: Callable[[], None] | None = None,
        holds: str | None = None,
        application_name: str = "headrace-listen",
    ) -> None:
        self.connected = False
        """Whether the connection is up and its `on_connected` succeeded."""
        self.last_seen = float("-inf")
        """The `time.monotonic()` of the last proof that Postgres answers."""
        self._url = url
        self._channels = channels
        self._on_notify = on_notify
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._holds = holds
        self._application_name = application_name
        self._failures = 0
        self._ever_connected = False

    async def run(self) -> None:
        """Listen until cancelled, connecting again whenever the connection is lost.

        Raises:
            SettingsError, SetupError: the very first connection shows that it can't ever work.
        """
        while True:
            try:
                await self._connect_and_hear()
            except (SettingsError, SetupError) as error:
                if not self._ever_connected:
                    raise
                _log.warning("listening failed: %s", error)
            except HeadraceError as error:
                _log.warning("listening failed: %s", error)
            except Exception:
                _log.exception("a callback of the listener failed; reading everything again")
            finally:
                self._lost()
            self._failures += 1
            await asyncio.sleep(_pause(self._failures))

    async def _connect_and_hear(self) -> None:
        connection = await connect_async(self._url, application_name=self._application_name)
        try:
            async with self._answer():
                await refuse_shared_backend(self._url, connection)
                if self._holds is not None:
                    await connection.execute(_SQL["hold"], {"session_id": self._holds})
                for channel in self._channels:
                    listen = sql.SQL(_SQL["listen"]).format(channel=sql.Identifier(channel))
                    await connection.execute(listen)
            await _call(self._on_connected())
            self.connected = self._ever_connected = True
            self._failures = 0
            while True:
                await self._hear(connection)
                async with self._answer():
                    await connection.execute(_SQL["prove"])
        except psycopg.Error as error:
            raise translate(self._url, error, connection_lost=connection.closed) from error
        finally:
            await connection.close()

    def _lost(self) -> None:
        was_connected, self.connected = self.connected, False
        if was_connected and self._on_lost is not None:
            self._on_lost()

    async def _hear(self, connection: Connection) -> None:
        async with aclosing(connection.notifies(timeout=PROOF_EVERY)) as notifications:
            async for notification in notifications:
                self.last_seen = monotonic()
                await _call(self._on_notify(notification.channel, notification.payload))

    @asynccontextmanager
    async def _answer(self) -> AsyncGenerator[None]:
        """Bound the time of what is asked inside; an answer is a proof of life."""
        try:
            async with asyncio.timeout(PROOF_WITHIN):
                yield
        except TimeoutError as error:
            raise unavailable(self._url, f"no answer within {PROOF_WITHIN:g} s") from error
        self.last_seen = monotonic()


async def _call(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result


def _pause(failures: int) -> float:
    """Seconds before the next try: doubling, bounded, and spread so that a site doesn't return as one."""
    longest = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** min(failures, 10))
    return longest * random.uniform(0.5, 1)  # noqa: S311 - spreads load, guards nothing
