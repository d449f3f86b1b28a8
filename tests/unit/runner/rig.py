"""A supervisor with real executors, and the gateway's end of its calls."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from gpu_runner.children.executors import ExecutorProcess, start_fork_server
from gpu_runner.children.watchdog import Warden
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.slots import MAIN, group_of
from gpu_runner.supervisor import Supervisor
from headrace.link.frames import Answer, Call, Started
from headrace.sdk.discovery import discover

_ids = itertools.count()
HERE = str(Path(__file__).parent)


class Gateway:
    """Calls the supervisor and keeps what it answers."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.answers: dict[str, asyncio.Future[Answer]] = {}
        self.order: list[Answer] = []
        self.started: list[str] = []

    def answer(self, frame: Answer | Started) -> None:
        if isinstance(frame, Started):
            self.started.append(frame.job_id)
        else:
            self.order.append(frame)
            self.answers[frame.job_id].set_result(frame)  # a second answer would raise

    def tell(self, frame: object) -> None:
        """Progress has no reader on the direct path."""

    def send(
        self,
        function: str,
        *,
        job_id: str = "",
        wait: float = 10,
        left: float = 100,
        alone: bool = False,
        **input: Any,
    ) -> str:
        """Start a call; returns its id."""
        job_id = job_id or f"job-{next(_ids)}"
        self.answers[job_id] = asyncio.get_running_loop().create_future()
        known = self.supervisor._functions.get(function)
        interface = known.manifest.interface if known else "1234"
        data = msgspec.json.encode(input)
        frame = Call(
            job_id, function, interface, data, "o", 1, int(left * 1000), int(wait * 1000), alone=alone
        )
        self.supervisor.take(frame, self)
        return job_id

    def stop(self, job_id: str) -> None:
        self.supervisor.stop(job_id, self)

    async def answer_to(self, job_id: str) -> Any:
        async with asyncio.timeout(20):
            return await self.answers[job_id]

    async def call(self, function: str, **options: Any) -> Any:
        return await self.answer_to(self.send(function, **options))

    async def value(self, function: str, **options: Any) -> Any:
        return msgspec.json.decode((await self.call(function, **options)).output)


class Rig:
    def __init__(
        self,
        *modules: str,
        executors: int = 1,
        brief_wait: float = 0.25,
        warden: Warden | None = None,
        device: str = "cpu",
        device_cap: int = 0,
        memory: int = 0,
        load_timeout: float = 60.0,
    ) -> None:
        functions = discover(modules)
        self.metrics = RunnerMetrics(functions)
        self.services_changed = 0
        self.supervisor = Supervisor(
            functions,
            self.metrics,
            brief_wait,
            self._services_changed,
            device_cap,
            memory,
            load_timeout,
        )
        self.metrics.watch(self.supervisor)
        self.gateway = Gateway(self.supervisor)
        context = start_fork_server(())
        config = ExecutorConfig(
            functions=modules, device=device, threads=1, path=(*sys.path, HERE), memory=memory
        )
        self.supervisor.executors += [
            ExecutorProcess(
                index,
                context,
                config,
                self.supervisor.executor_ready,
                self.supervisor.executor_said,
                self.supervisor.executor_lost,
                warden,
                {name for name, function in functions.items() if group_of(function)[0] == MAIN},
            )
            for index in range(executors)
        ]
        for executor in self.supervisor.executors:
            executor.preload = self.supervisor.models.preload
            executor.on_unborn = self.supervisor.models.unborn
        self.executor = self.supervisor.executors[0]

    def _services_changed(self) -> None:
        self.services_changed += 1

    def pid(self) -> int:
        assert self.executor.pid is not None
        return self.executor.pid

    async def ready(self) -> None:
        """All executors have loaded."""
        async with asyncio.timeout(60):
            while not all(executor.is_ready for executor in self.supervisor.executors):
                await asyncio.sleep(0.002)

    def idle(self) -> bool:
        """Nothing is left of any call."""
        slots = list(self.supervisor.groups())
        return (
            not self.supervisor._calls
            and all(group.load == 0 for group in slots)
            and all(group.running_s == group._waiting_s == group._waiting_bytes == 0 for group in slots)
            and all(not any(executor.busy.values()) for executor in self.supervisor.executors)
        )

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def runner(*modules: str, **options: Any) -> AsyncIterator[Rig]:
    """A runner whose executors are ready; options are `Rig`'s."""
    rig = Rig(*modules, **options)
    tasks = [asyncio.create_task(executor.keep_running()) for executor in rig.supervisor.executors]
    try:
        await rig.ready()
        yield rig
        assert rig.idle()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
