"""Work that is cut off when it takes too long, and sooner in a hurry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from gpu_runner.tasks import cut_short

LONG_S = 60.0


def took_s(
    work: Coroutine[Any, Any, object],
    *,
    hurry_at: float | None = None,
    seconds: float | None,
    hurried_s: float,
) -> float:
    """How long it took until it was over."""

    async def scenario() -> float:
        hurrying = asyncio.Event()
        if hurry_at is not None:
            asyncio.get_running_loop().call_later(hurry_at, hurrying.set)
        began = time.monotonic()
        await cut_short(work, hurrying, seconds=seconds, hurried_s=hurried_s)
        return time.monotonic() - began

    return asyncio.run(scenario())


def test_what_ends_in_time_is_not_cut_off() -> None:
    done: list[int] = []

    async def work() -> None:
        await asyncio.sleep(0.2)
        done.append(1)

    took_s(work(), seconds=LONG_S, hurried_s=0)
    took_s(work(), seconds=None, hurried_s=0)
    took_s(work(), hurry_at=0.05, seconds=LONG_S, hurried_s=LONG_S)
    assert done == [1, 1, 1]


def test_what_takes_too_long_is_cut_off() -> None:
    assert 0.05 <= took_s(asyncio.sleep(LONG_S), seconds=0.05, hurried_s=LONG_S) < 10


@pytest.mark.parametrize("seconds", [LONG_S, None])
@pytest.mark.parametrize("hurried_s", [0, 0.2])
def test_a_hurry_that_comes_meanwhile_cuts_it_short(seconds: float | None, hurried_s: float) -> None:
    took = took_s(asyncio.sleep(LONG_S), hurry_at=0.1, seconds=seconds, hurried_s=hurried_s)
    assert 0.1 + hurried_s <= took + 0.01 < 10


def test_what_fails_by_itself_is_told_and_what_comes_of_being_cut_off_is_not() -> None:
    async def fails() -> None:
        raise LookupError

    async def fails_late() -> None:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            raise LookupError

    with pytest.raises(LookupError):
        took_s(fails(), seconds=LONG_S, hurried_s=0)
    took_s(fails_late(), seconds=0.05, hurried_s=0)
