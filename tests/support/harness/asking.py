"""A runner's calls that make calls, on a ledger: asked for in one line each, answered as a test says."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gpu_runner.calls import LocalCall
from gpu_runner.frames import Invoke, Invoked
from gpu_runner.invoking.ledger import Ledger
from harness.ledger import Runner, make_owner, opened, submit_one
from headrace import registry
from headrace.database import Database
from headrace.domain import Manifest, RunnerInfo
from headrace.ids import uuid7
from headrace.link.frames import Call
from headrace.sdk import function
from headrace.settings import Settings


@function(attempts=1)
def caller(input: int) -> int: ...


@function(attempts=1)
def called(input: int) -> int: ...


class Nobody:
    def answer(self, frame: object) -> None: ...

    def tell(self, frame: object) -> None: ...


class Site:
    """A runner's ledger on a database, without a connection that listens: `look` stands for what it hears."""

    def __init__(self, database: Database, owner: str, settings: Settings) -> None:
        self.database = database
        self.owner = owner
        self.session_id = str(uuid.uuid4())
        self.ledger = Ledger(database, self.session_id, settings, {})
        self.made: list[str] = []
        self.runner = Runner(database)

    def call(self, *, job_id: str = "", left: float = 100, manifest: Manifest = caller.manifest) -> LocalCall:
        frame = Call(
            *(job_id or uuid7(), manifest.name, manifest.interface, b"1", self.owner, 1),
            remaining_ms=int(left * 1000),
            wait_ms=1000,
            request_id="r",
        )
        return LocalCall(frame, Nobody(), manifest)

    def ask(
        self, call: LocalCall, input: int = 1, *, of: Manifest = called.manifest, **more: Any
    ) -> asyncio.Task[Invoked]:
        data = msgspec.json.encode(input)
        asked = Invoke(call.job_id, 1, 0, of.name, of.interface, data, hashlib.sha256(data).digest())
        asked = msgspec.structs.replace(asked, **more)
        return asyncio.create_task(self.ledger.output(asked, call, self.made))

    async def claim(self, name: str = "called") -> Any:
        """The job that is made, as soon as it is there."""
        manifest = {"called": called.manifest, "caller": caller.manifest}[name]
        async with asyncio.timeout(20):
            while True:
                found = await self.runner.claim(function=name, interface=manifest.interface)
                if found:
                    return found[0]
                await asyncio.sleep(0.005)

    async def told(self, asking: asyncio.Task[Invoked]) -> Invoked:
        async with asyncio.timeout(20):
            while not asking.done():
                await self.ledger.ends.look()
                await asyncio.sleep(0.005)
            return await asking


@asynccontextmanager
async def _site(url: str, **settings: Any) -> AsyncIterator[Site]:
    async with opened(url) as database:
        info = RunnerInfo(str(uuid.uuid4()), None, "default", {"called": called.manifest.interface})
        await registry.register(database, info, [called.manifest, caller.manifest])
        yield Site(database, await make_owner(database), Settings(**settings))


def run(url: str, scenario: Callable[[Site], Awaitable[None]], **settings: Any) -> None:
    async def within() -> None:
        async with _site(url, **settings) as made:
            await scenario(made)

    asyncio.run(within())


async def submitted(site: Site, **changes: Any) -> Any:
    """A job of `caller` that runs."""
    manifest = caller.manifest
    await submit_one(
        site.database, site.owner, function=manifest.name, interface=manifest.interface, **changes
    )
    return await site.claim("caller")
