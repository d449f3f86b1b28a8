"""Run a site until somebody asks it to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.site import Site, Started

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run_site(
    site: Site, use: Callable[[Started], Awaitable[None]], stopping: Callable[[], None]
) -> bool:
    """Start the site, do `use` with it, stop it; a signal cuts short the first two, a second one the last.

    A terminal that closes may send SIGHUP twice, itself and by its shell, so that is no second one.

    Returns:
        Whether `use` came to its end, unsignalled.
    """
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(_start_and_use(site, use))
    asked = False

    def ask(number: int) -> None:
        nonlocal asked
        if asked:
            if number != signal.SIGHUP:
                site.kill()
            return
        asked = True
        stopping()
        work.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, ask, number)
    try:
        await asyncio.wait([work])
        # From here on, a signal means the second one.
        was_asked, asked = asked, True
        await site.stop()
        if not was_asked:
            work.result()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return not was_asked


async def _start_and_use(site: Site, use: Callable[[Started], Awaitable[None]]) -> None:
    await use(await site.start())
