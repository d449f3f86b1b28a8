"""Batches in one line each, and one whose inputs come when a test says so."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from harness.ledger import INTERFACE, LANE, opened
from headrace.database import Database
from headrace.ids import uuid7
from headrace.ledger.batches import BatchReceipt, NewBatch, Part, submit_batch

LONG = "test-batch"


def new_batch(owner_id: str, size: int, **changes: Any) -> NewBatch:
    made = NewBatch(
        batch_id=uuid7(),
        owner_id=owner_id,
        function=LANE,
        interface=INTERFACE,
        digest=b"d" * 32,
        costs=[1.0] * size,
        size=size,
        attempts=2,
        queue_s=60.0,
        total_s=600.0,
        most_outstanding=10_000,
        most_waiting=10_000,
        key_ttl_s=60.0,
    )
    return msgspec.structs.replace(made, **changes)


def inputs(size: int) -> list[bytes]:
    return [b'{"n": %d}' % n for n in range(size)]


async def parts(found: Sequence[bytes], at_once: int = 3, ids: Sequence[str] = ()) -> AsyncIterator[Part]:
    named = ids or [uuid7() for _ in found]
    for at in range(0, len(found), at_once):
        some = found[at : at + at_once]
        digests = [hashlib.sha256(one).digest() for one in some]
        yield Part(list(named[at : at + at_once]), list(some), digests)


@asynccontextmanager
async def pools(url: str) -> AsyncGenerator[tuple[Database, Database]]:
    """Connections for the long transactions, and for all else."""
    async with (
        opened(url) as database,
        await Database.open(url, application_name=LONG, max_size=4) as long,
    ):
        yield long, database


async def record(long: Database, database: Database, batch: NewBatch) -> BatchReceipt:
    return await submit_batch(long, database, batch, parts(inputs(len(batch.costs))))


class Gate:
    """The parts of a batch that come when the test says so."""

    def __init__(self, size: int) -> None:
        self.began = asyncio.Event()
        self.opened = asyncio.Event()
        self._inputs = inputs(size)

    async def parts(self) -> AsyncIterator[Part]:
        first = True
        async for part in parts(self._inputs):
            yield part
            if first:
                self.began.set()  # the first part is recorded, the others aren't
                await self.opened.wait()
            first = False
