"""A gateway's links to a runner that says only what a test makes it say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.scripted_runner import SECRET, ScriptedRunner, settle
from headrace.gateway.pending import PendingCall
from headrace.gateway.runners import RunnerLinks
from headrace.gateway.serving import Serving
from headrace.link.frames import Call, Service

ECHO = Service("echo", "1234", 4)
NAP = Service("nap", "5678", 4)


def run(scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


def call(job_id: str = "job", function: str = "echo", size: int = 2) -> Call:
    return Call(job_id, function, "1234", b"x" * size, "owner", 1, 100_000, 250)


async def linked(links: RunnerLinks, count: int = 1) -> None:
    while links.count() != count:
        assert await links.next_change(10)


@asynccontextmanager
async def site(
    folder: Path, *services: Service
) -> AsyncIterator[tuple[RunnerLinks, ScriptedRunner, Serving]]:
    """One silent runner, linked."""
    links = RunnerLinks()
    async with ScriptedRunner(f"unix:{folder}/s", lambda _: None, services or (ECHO, NAP)) as runner:
        try:
            links.update([runner.info], SECRET)
            await linked(links)
            (serving,) = links.serving("echo", "1234")
            yield links, runner, serving
        finally:
            links.close()
    await settle()


async def answered(pending: PendingCall) -> Any:
    return await pending.wait(10)
