"""A bench whose calls are handed over: its clock, its ledger's troubles, and what must be left at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from job_bench import JobBench, job_bench
from rig import Gateway

from gpu_runner.jobs import handover, recording, unsettled
from headrace.errors import DatabaseError, DatabaseUnavailable
from headrace.link.frames import Handover

DIGEST = bytes(32)
WORKS = ("finish", "hand over", "settle", "report")


class Clock:
    now = 1000.0


@contextmanager
def stopped_clock() -> Iterator[Clock]:
    """Leases move only as a test says, and what is tried again is tried at once."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (handover, recording, unsettled):
            patch.setattr(module, "boot_time", lambda: clock.now)
        patch.setattr(handover, "_SHORTEST_PAUSE_S", 0.0)
        patch.setattr(handover, "_REFUSED_PAUSE_S", 0.0)
        patch.setattr(unsettled, "LOOK_AGAIN_S", 0.0)
        yield clock


def run(scenario: Callable[[JobBench, Clock], Awaitable[None]], **options: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20), job_bench(*WORKS, **options) as bench:
            await scenario(bench, clock)
            await bench.settled()
            check_nothing_is_left(bench)

    with stopped_clock() as clock:
        asyncio.run(limited())


def check_nothing_is_left(bench: JobBench) -> None:
    assert not bench.handovers._open
    assert not bench.handovers._users
    assert not bench.handovers.settling.count()
    assert not bench.claim_ids._in_flight


def hand_over(bench: JobBench, job_id: str, gateway: Gateway | None = None, **told: Any) -> None:
    """The gateway says that the call's hold is ending."""
    bench.supervisor.hand_over(Handover(job_id, digest=DIGEST, **told), gateway or bench.gateway)


def lose_replies(bench: JobBench) -> None:
    """From now on transactions take effect, and nobody hears of it."""
    bench.ledger.trouble["reply"] = lambda _: DatabaseUnavailable("the connection was lost")


def take_nothing(bench: JobBench, error: DatabaseError) -> None:
    """From now on transactions don't take effect."""
    bench.ledger.trouble["hand_over"] = lambda _: error


def mend(bench: JobBench) -> None:
    bench.ledger.trouble.clear()


async def tried(bench: JobBench, times: int = 1) -> None:
    """So many more transactions have been sent, and answered with an error."""
    before = len(bench.ledger.handovers)
    await bench.ledger.until(lambda: len(bench.ledger.handovers) >= before + times)
    await bench.settled()
