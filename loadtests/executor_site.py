"""A supervisor with one executor, whose ends are measured: see `executor_restarts.py`."""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil

from gpu_runner.calls import LocalCall
from gpu_runner.children.executors import ExecutorProcess, start_fork_server
from gpu_runner.children.family import FAMILY
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.frames import Ready, Reported, Streamed
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.supervisor import Supervisor
from headrace.link.frames import Answer, Call, Result, Started
from headrace.sdk.bytecode import heavy_imports
from headrace.sdk.discovery import discover

_HERE = str(Path(__file__).parent)
_PATIENCE_S = 300.0
_ids = itertools.count()


class Site:
    """A supervisor with one executor, and whoever calls it."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.functions = discover(modules)
        self.supervisor = Supervisor(self.functions, RunnerMetrics(self.functions), 60.0, lambda: None)
        config = ExecutorConfig(
            functions=tuple(modules), device="cpu", threads=1, path=(_HERE, str(Path.cwd()), *sys.path)
        )
        context = start_fork_server(heavy_imports(self.functions.values()))
        self.executor = ExecutorProcess(
            0, context, config, self._ready, self.supervisor.executor_said, self._lost
        )
        self.executor.preload = self.supervisor.models.preload
        self.supervisor.executors.append(self.executor)
        self.load_s: list[float] = []
        self.freed: list[float] = []  # seconds after the hard limit
        self.is_ready = asyncio.Event()
        self._answers: dict[str, asyncio.Future[Answer]] = {}

    def _ready(self, executor: ExecutorProcess, ready: Ready) -> None:
        self.load_s.append(ready.load_s)
        self.supervisor.executor_ready(executor, ready)
        self.is_ready.set()

    def _lost(self, executor: ExecutorProcess) -> None:
        if executor.killed_for is not None and executor.killed_for.started_at:
            self.freed.append(time.monotonic() - executor.killed_for.kill_at)
        self.supervisor.executor_lost(executor)

    def answer(self, frame: Answer | Started) -> None:
        """Called by the supervisor."""
        if not isinstance(frame, Started):
            self._answers.pop(frame.job_id).set_result(frame)

    def tell(self, frame: Reported | Streamed) -> None:
        """Called by the supervisor."""

    def frame(self, function: str, data: object) -> Call:
        """A call of one of the functions."""
        interface = self.functions[function].manifest.interface
        body = msgspec.json.encode(data)
        return Call(f"job-{next(_ids)}", function, interface, body, "bench", 1, 600_000, 600_000)

    def send(self, function: str, data: object) -> asyncio.Future[Answer]:
        """Call a function; returns what becomes its answer."""
        frame = self.frame(function, data)
        answer = self._answers[frame.job_id] = asyncio.get_running_loop().create_future()
        self.supervisor.take(frame, self)
        return answer

    async def kill_idle(self) -> None:
        """Kill the executor, and wait until there is another one."""
        self.is_ready.clear()
        # For a call, as nobody's kills in a row would be slowed down.
        frame = self.frame("ping", {})
        self.executor.kill(LocalCall(frame, self, self.functions["ping"].manifest))
        async with asyncio.timeout(_PATIENCE_S):
            await self.is_ready.wait()


@asynccontextmanager
async def serving(*modules: str) -> AsyncGenerator[Site]:
    """A site whose executor is ready."""
    site = Site(modules)
    living = asyncio.create_task(site.executor.keep_running())
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await site.is_ready.wait()
        yield site
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)


async def measure_limits(
    kills: int, title: str, modules: Sequence[str], next_call: tuple[str, object]
) -> None:
    """Let calls run into their hard limit, and print how soon all is well again."""
    answered: list[float] = []
    async with serving(*modules) as site:
        for _ in range(kills):
            held = site.send("hold", {})
            following = site.send(*next_call)
            await held
            killed_at = time.monotonic() - site.freed[-1]
            answer = await following
            assert isinstance(answer, Result), answer
            answered.append(time.monotonic() - killed_at)
        print(f"\n{title}, {kills} kills ({'median':>8} {'p90':>8} {'max':>8})")
        row("from the hard limit until the slot is free", site.freed)
        row("from the hard limit until the next answer", answered)
        row("of that, loading", site.load_s[1:])


def row(title: str, seconds: Sequence[float]) -> None:
    """One line of a table."""
    p90 = statistics.quantiles(seconds, n=10, method="inclusive")[8]
    figures = "  ".join(f"{one:6.3f} s" for one in (statistics.median(seconds), p90, max(seconds)))
    print(f"  {title:45} {figures}", flush=True)


def state() -> dict[str, float]:
    """What this process and the fork server hold."""
    gc.collect()
    this, server = psutil.Process(), psutil.Process(FAMILY.server)
    below = this.children(recursive=True)
    return {
        "memory, MiB": this.memory_info().rss / 2**20,
        "descriptors": this.num_fds(),
        "threads": this.num_threads(),
        "processes below": len(below),
        "zombies below": sum(one.status() == psutil.STATUS_ZOMBIE for one in below),
        "memory of the fork server, MiB": server.memory_info().rss / 2**20,
        "descriptors of the fork server": server.num_fds(),
    }


async def measure_leaks(restarts: int) -> None:
    """Kill an idle executor again and again, and print what has grown."""
    async with serving("limit_functions") as site:
        for _ in range(20):  # what is made once is made by now
            await site.kill_idle()
        before, began = state(), time.monotonic()
        for _ in range(restarts):
            await site.kill_idle()
        seconds = (time.monotonic() - began) / restarts
        after = state()
        print(f"\n{restarts} kills and restarts, {seconds:.3f} s each ({'before':>8} {'after':>8})")
        for name, value in before.items():
            print(f"  {name:45} {value:8.1f} {after[name]:8.1f}", flush=True)
