"""Calls that calls make, in the ledger: made once for all attempts, waited for, refused."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from harness.ledger import Runner, elapse, make_owner, opened, row, story
from harness.postgres import query

from gpu_runner.calls import LocalCall
from gpu_runner.frames import Invoke, Invoked
from gpu_runner.invoking.ledger import DEEPEST, Ledger
from headrace import registry
from headrace.database import Database
from headrace.domain import Manifest, RunnerInfo
from headrace.ids import uuid7
from headrace.ledger import settling
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
        self.ledger = Ledger(database, str(uuid.uuid4()), settings, {})
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


def test_what_has_succeeded_is_not_done_again(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        asking = site.ask(call)
        job = await site.claim()
        await site.runner.end(job, output=b"2")
        first = await site.told(asking)
        assert (first.output, first.child_id) == (b"2", job.job_id)

        again = await site.told(site.ask(call, attempt=2, number=5))
        assert (again.output, again.child_id, again.number) == (b"2", job.job_id, 5)
        assert query(database_url, "SELECT count(*) FROM job") == [(1,)]
        assert (await story(site.database, job.job_id))[0][2] == f"call:{call.job_id}:caller"

    run(database_url, scenario)


def test_what_still_runs_is_joined(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        first = site.ask(call)
        job = await site.claim()
        second = site.ask(call, attempt=2)
        await site.runner.end(job, output=b"2")
        assert (await site.told(first)).output == (await site.told(second)).output == b"2"

    run(database_url, scenario)


def test_what_expired_for_an_earlier_attempt_is_done_again(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        first = site.ask(call)
        async with asyncio.timeout(20):
            while not query(database_url, "SELECT 1 FROM job"):
                await asyncio.sleep(0.005)
        await elapse(site.database, 61)
        await settling.settle(site.database, "test")
        expired = await site.told(first)
        assert (expired.output, expired.category) == (None, "queue-deadline-exceeded")
        assert expired.is_passing

        second = site.ask(call, attempt=2)
        job = await site.claim()
        assert job.job_id != expired.child_id
        await site.runner.end(job, output=b"2")
        assert (await site.told(second)).output == b"2"

    run(database_url, scenario)


def test_what_failed_for_good_is_not_done_again(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        first = site.ask(call)
        await site.runner.end(await site.claim(), "failed", category="invalid-input", message="No.")
        for told in (await site.told(first), await site.told(site.ask(call, attempt=2))):
            assert (told.category, told.message, told.is_passing) == ("invalid-input", "No.", False)
        assert query(database_url, "SELECT count(*) FROM job") == [(1,)]

    run(database_url, scenario)


def test_it_has_its_callers_deadline_owner_and_weight(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        parent = (await _submitted(site, weight=4.0)).job_id
        asking = site.ask(site.call(job_id=parent, left=20))
        job = await site.claim()
        made = await row(site.database, job.job_id)
        assert (made["owner_id"], made["weight"], made["request_id"]) == (site.owner, 4.0, "r")
        assert (made["deadline_at"] - made["created_at"]).total_seconds() <= 20
        assert made["queue_deadline_at"] <= made["deadline_at"]
        asking.cancel()

    run(database_url, scenario)


async def _submitted(site: Site, **changes: Any) -> Any:
    """A job of `caller` that runs."""
    from harness.ledger import submit_one  # noqa: PLC0415

    manifest = caller.manifest
    await submit_one(
        site.database, site.owner, function=manifest.name, interface=manifest.interface, **changes
    )
    return await site.claim("caller")


def test_a_chain_neither_closes_nor_grows_for_ever(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        own = await site.told(site.ask(site.call(manifest=called.manifest)))
        assert (own.category, own.is_passing) == ("recursion", False)
        assert own.message.startswith("called -> called: ")

        chain = [f"f{number}" for number in range(DEEPEST - 1)]
        parent = (await _submitted(site, actor=f"call:{uuid7()}:{'/'.join(chain)}")).job_id
        deep = await site.told(site.ask(site.call(job_id=parent)))
        assert deep.category == "too-deep"
        parent = (await _submitted(site, actor=f"call:{uuid7()}:called")).job_id
        closed = await site.told(site.ask(site.call(job_id=parent)))
        assert closed.message.startswith("called -> caller -> called: ")
        assert query(database_url, "SELECT count(*) FROM job WHERE function = 'called'") == [(0,)]

    run(database_url, scenario)


def test_without_room_it_is_refused_for_now(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        waiting = site.ask(site.call())
        async with asyncio.timeout(20):
            while not query(database_url, "SELECT 1 FROM job"):
                await asyncio.sleep(0.005)
        refused = await site.told(site.ask(site.call(), 2))
        assert (refused.category, refused.is_passing) == ("backlog-full", True)
        waiting.cancel()

    run(database_url, scenario, backlog=1)


def test_it_comes_back_when_there_should_be_room(database_url: str) -> None:
    """With the place that was kept for it: here, as if a second were expected."""

    async def scenario(site: Site) -> None:
        first = site.ask(site.call())
        async with asyncio.timeout(20):
            while not query(database_url, "SELECT 1 FROM job"):
                await asyncio.sleep(0.005)
        query(database_url, "UPDATE lane SET most_waiting = 1")
        waits = site.ledger._wait_for_room
        refusals: list[str] = []

        async def soon(receipt: Any, left_s: float) -> str:
            refusals.append(receipt.outcome)
            job = await site.claim()  # it has started: there is room
            await site.runner.end(job, output=b"1")
            known = msgspec.structs.replace(receipt, place=receipt.place or str(uuid.uuid4()), due_s=0.01)
            return await waits(known, left_s)

        site.ledger._wait_for_room = soon
        second = site.ask(site.call(), 2)
        async with asyncio.timeout(20):
            while not refusals:
                await asyncio.sleep(0.005)
        assert (await site.told(first)).output == b"1"
        await site.runner.end(await site.claim(), output=b"2")
        assert (await site.told(second)).output == b"2"
        assert refusals == ["backlog-full"]

    run(database_url, scenario, backlog=1)


def test_what_is_not_served_so_is_refused(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        unknown = await site.told(site.ask(site.call(), function="unheard-of"))
        assert (unknown.category, unknown.is_passing) == ("unknown-function", False)
        other = await site.told(site.ask(site.call(), interface="older"))
        assert (other.category, other.is_passing) == ("unknown-interface", True)
        late = await site.told(site.ask(site.call(left=0)))
        assert late.category == "deadline-exceeded"
        large = await site.told(site.ask(site.call(), input=b" " * (2**20 + 1)))
        assert large.category == "payload-too-large"

    run(database_url, scenario)


def test_a_cancel_ends_it_and_spares_what_has_ended(database_url: str) -> None:
    async def scenario(site: Site) -> None:
        call = site.call()
        asking = site.ask(call)
        job = await site.claim()
        await site.ledger.cancel(job.job_id, call)
        assert (await row(site.database, job.job_id))["state"] == "cancel_requested"
        await site.runner.end(job, "failed", category="cancelled")
        assert (await site.told(asking)).category == "job-cancelled"
        await site.ledger.cancel(job.job_id, call)
        await site.ledger.cancel(str(uuid.uuid4()), call)

        began = time.monotonic()
        second = site.ask(call, attempt=2)  # the one before isn't wanted any more, this one is
        assert (await site.claim()).job_id != job.job_id
        assert time.monotonic() - began < 20
        second.cancel()

    run(database_url, scenario)
