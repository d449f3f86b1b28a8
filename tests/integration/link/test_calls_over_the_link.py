"""A gateway's links and a runner's link server, over a real socket, with real executors behind them."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_runner.children.executors import ExecutorProcess, start_fork_server
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.link_server import LinkServer
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.supervisor import Supervisor
from headrace.admission import Span
from headrace.domain import RunnerInfo
from headrace.gateway.calling import Asked, Caller
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.problems import Problem
from headrace.gateway.runners import RunnerLinks
from headrace.link.address import Address
from headrace.link.frames import Result
from headrace.sdk.discovery import discover

SECRET = b"s" * 32
MODULE = "site_functions"
_ids = itertools.count()


async def stays() -> Any:
    await asyncio.Event().wait()


class Site:
    def __init__(
        self, caller: Caller, links: RunnerLinks, supervisor: Supervisor, server: LinkServer
    ) -> None:
        self.caller = caller
        self.links = links
        self.supervisor = supervisor
        self.server = server
        self.functions = discover([MODULE])

    async def call(self, function: str, *, hold: float = 10, **input: Any) -> Result:
        manifest = self.functions[function].manifest
        body = msgspec.json.encode(input)
        return await self.caller.answer(
            Asked(f"job-{next(_ids)}", manifest, body, "owner", "r", "", Span(hold, 100), stays)
        )

    async def problem(self, function: str, **options: Any) -> Problem:
        with pytest.raises(Problem) as caught:
            await self.call(function, **options)
        return caught.value

    async def quiet(self) -> None:
        """The runner has nothing to do."""
        async with asyncio.timeout(10):
            while self.supervisor._calls:
                await asyncio.sleep(0.002)


@asynccontextmanager
async def site(address: str) -> AsyncIterator[Site]:
    functions = discover([MODULE])
    supervisor = Supervisor(functions, RunnerMetrics(functions), 0.25, lambda: None)
    config = ExecutorConfig(functions=(MODULE,), device="cpu", threads=1, path=tuple(sys.path))
    executor = ExecutorProcess(
        0,
        start_fork_server(()),
        config,
        supervisor.executor_ready,
        supervisor.executor_said,
        supervisor.executor_lost,
    )
    supervisor.executors.append(executor)
    living = asyncio.create_task(executor.keep_running())
    server, links = LinkServer(supervisor, "runner-1", SECRET), RunnerLinks()
    try:
        async with asyncio.timeout(20):
            await supervisor.ready.wait()
            actual = await server.listen(Address.parse(address))
            links.update([RunnerInfo("runner-1", str(actual), "default", {})], SECRET)
            while not links.count():
                assert await links.next_change(10)
        yield Site(Caller(links, GatewayMetrics()), links, supervisor, server)
    finally:
        links.close()
        server.close()
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        for _ in range(10):
            await asyncio.sleep(0)


def run(scenario: Any, address: str) -> None:
    async def limited() -> None:
        async with asyncio.timeout(40), site(address) as here:
            await scenario(here)

    asyncio.run(limited())


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/s" if request.param == "unix" else "tcp://127.0.0.1:0"


def test_calls_are_answered(address: str) -> None:
    async def scenario(here: Site) -> None:
        result = await here.call("echo", text="hello", top_k=3)
        assert msgspec.json.decode(result.output)["text"] == "hello"
        assert (await here.problem("refuses")).code == "invalid-input"
        assert (await here.problem("fails")).detail == "the archive has burnt down"
        assert (await here.call("recovers")).attempt == 3
        assert (await here.problem("never_recovers")).code == "attempts-exhausted"

    run(scenario, address)


def test_many_calls_at_once_each_get_their_own_answer(tmp_path: Path) -> None:
    async def scenario(here: Site) -> None:
        async def one(number: int) -> None:
            result = await here.call("echo", text=f"{number}" * 500)
            assert msgspec.json.decode(result.output)["text"] == f"{number}" * 500

        for begin in range(0, 200, 10):
            await asyncio.gather(*(one(number) for number in range(begin, begin + 10)))
        await here.quiet()
        assert set(here.supervisor.loads().values()) == {0}

    run(scenario, f"unix:{tmp_path}/s")


def test_a_call_that_loses_its_process_runs_once_more(tmp_path: Path) -> None:
    async def scenario(here: Site) -> None:
        assert (await here.call("dies_once")).attempt == 2
        lost = await here.problem("dies_at_once")
        assert (lost.code, lost.status) == ("worker-lost", 502)
        assert (await here.call("echo", text="up")).attempt == 1
        killed = await here.problem("stuck", seconds=60)
        assert killed.code == "hard-limit-exceeded"
        await here.call("echo", text="up")

    run(scenario, f"unix:{tmp_path}/s")


def test_the_end_of_the_hold_ends_the_work(tmp_path: Path) -> None:
    async def scenario(here: Site) -> None:
        assert (await here.problem("nap", seconds=5, hold=0.1)).code == "hold-exceeded"
        await here.quiet()
        assert here.supervisor.executors[0].restarts == 0

    run(scenario, f"unix:{tmp_path}/s")


def test_a_gateway_that_vanishes_stops_its_calls(tmp_path: Path) -> None:
    async def scenario(here: Site) -> None:
        napping = asyncio.ensure_future(here.problem("nap", seconds=5, hold=0.8))
        async with asyncio.timeout(10):
            while not here.supervisor._calls:
                await asyncio.sleep(0.002)
        here.links.close()
        await here.quiet()
        assert (await napping).code == "worker-lost"
        assert here.supervisor.executors[0].restarts == 0

    run(scenario, f"unix:{tmp_path}/s")


def test_what_a_runner_cannot_run_any_more_is_known_at_once(tmp_path: Path) -> None:
    async def scenario(here: Site) -> None:
        napping = asyncio.ensure_future(here.call("nap", seconds=0.2))
        (serving,) = here.links.serving("fails", here.functions["fails"].manifest.interface)
        here.supervisor._books.degraded = {"fails": "no weights"}
        here.server.tell_state()
        async with asyncio.timeout(0.9):  # before the next of the regular ones
            while not serving.degraded:
                await asyncio.sleep(0.002)
        assert serving.degraded == "no weights"
        assert isinstance(await napping, Result)  # nothing on the way was lost
        assert (await here.problem("fails")).code == "function-degraded"
        await here.call("echo", text="works")

    run(scenario, f"unix:{tmp_path}/s")


def test_a_draining_runner_takes_nothing_new(tmp_path: Path) -> None:
    async def scenario(here: Site) -> None:
        napping = asyncio.ensure_future(here.call("nap", seconds=0.2))
        async with asyncio.timeout(10):
            while not here.supervisor._calls:
                await asyncio.sleep(0.002)
        draining = asyncio.ensure_future(here.supervisor.drain(10))
        await asyncio.sleep(0)
        assert (await here.problem("echo", text="late")).code == "no-runner"
        assert isinstance(await napping, Result)
        await draining

    run(scenario, f"unix:{tmp_path}/s")
