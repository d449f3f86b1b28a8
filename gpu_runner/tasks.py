"""How tasks are ended, also those that wait for a Postgres which says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

_PATIENCE_S = 0.5

Step = Callable[[Coroutine[Any, Any, object]], Awaitable[None]]
"""Does a part of something, and cuts it off when that takes too long."""


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their end; what they raise is dropped.

    A query that is cancelled asks Postgres to stop it, and waits up to 10 s for the answers: a second cancel
    ends that, too.
    """
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_PATIENCE_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def cut_short(
    work: Coroutine[Any, Any, object], hurrying: asyncio.Event, *, seconds: float | None, hurried_s: float
) -> None:
    """Do something, and cut it off when it takes too long; what it raises by itself is raised here.

    Args:
        work: to be done.
        hurrying: set as soon as there is a hurry, which may be now.
        seconds: how long it may take; as long as it likes, if None.
        hurried_s: how long it may go on in a hurry.
    """
    task, hurry = asyncio.create_task(work), asyncio.create_task(hurrying.wait())
    await asyncio.wait({task, hurry}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if hurry.done():
        await asyncio.wait({task}, timeout=hurried_s)
    has_ended = task.done()
    await end(task, hurry)
    if has_ended:
        task.result()
