"""A call that is refused for now, made again when the site has said so, with its place in line.

"For now" is any 429 or 503 with `Retry-After`: no room, a quota, no runner, a pause, Postgres away.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

import httpx2

from headrace.client.errors import CallRefused

_FOR_NOW: Final = frozenset({429, 503})
_SOONEST_S: Final = 1


def until_taken(
    ask: Callable[[Mapping[str, str]], httpx2.Response],
    refused: Callable[[httpx2.Response], CallRefused],
    *,
    patience: float,
    place: str | None = None,
    may_repeat: bool = False,
    on_wait: Callable[[CallRefused], None] | None = None,
) -> httpx2.Response:
    """The first answer that isn't "not now", or that comes when patience is over.

    It never asks sooner than told, so one who has no patience for that long is answered at once.

    Args:
        ask: makes the call, with these headers besides its own.
        refused: makes the error of an answer.
        patience: seconds for all tries together, without what the last one takes.
        place: a place in line that was given before.
        may_repeat: an answer that can't tell whether the call was accepted is no reason to stop, as
            its idempotency key makes both one.
        on_wait: told of each refusal that is waited for.

    Raises:
        ValueError: patience isn't a number.
    """
    if math.isnan(patience):
        raise ValueError("patience is a number of seconds")
    ends_at = time.monotonic() + patience
    while True:
        response = ask({"Headrace-Place": place} if place else {})
        if patience <= 0 or response.status_code not in _FOR_NOW:
            return response
        refusal = refused(response)
        if refusal.retry_after is None or (refusal.job_id and not may_repeat):
            return response
        wait = max(_SOONEST_S, refusal.retry_after)
        if time.monotonic() + wait > ends_at:
            return response
        if on_wait is not None:
            on_wait(refusal)
        time.sleep(wait)
        place = refusal.place or place  # kept where it wasn't asked for, as by a quota
