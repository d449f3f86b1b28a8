"""A supervisor over executors that only record what they are told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rig import Gateway

from gpu_runner.ahead import Ahead
from gpu_runner.frames import Done, Loaded, Ready, Run, Stop
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.supervisor import Supervisor
from headrace.sdk.discovery import discover

MODULES = ("executor_functions", "parallel_functions")


class Scripted:
    """An executor as the supervisor knows it."""

    def __init__(self, index: int, supervisor: Supervisor) -> None:
        self.index = index
        self.supervisor = supervisor
        self.calls: dict[str, Any] = {}
        self.busy: Counter[str] = Counter()
        self.ahead = Ahead()
        self.is_ready = False
        self.killed_for: Any = None
        self.closed_for: Any = None
        self.resting: set[str] = set()
        self.was_frozen = False
        self.degraded: dict[str, str] = {}
        self.lacking: set[str] = set()
        self.is_moving = False
        self.was_loading = False
        self.pid: int | None = None
        self.interrupted: list[str] = []
        self.sent: list[Run | Stop] = []

    @property
    def is_limited(self) -> bool:
        return bool(self.degraded or self.lacking or self.is_moving)

    def send(self, frame: Any) -> None:
        self.sent.append(frame)

    def interrupt(self, call: Any) -> None:
        self.interrupted.append(call.job_id)

    def kill_loading(self) -> None:
        self.was_loading = True
        self.kill()

    def kill(self, culprit: Any = None) -> None:
        self.killed_for = self.killed_for or culprit
        self.is_ready = False

    def become_ready(self, **degraded: str) -> None:
        self.killed_for = None
        self.was_loading = False
        for model in self.supervisor.models.preload(self).models:  # type: ignore[arg-type]
            self.say(Loaded(model, 0, 0.0))
        self.is_ready = True
        self.supervisor.executor_ready(self, Ready("cpu", 0.7, degraded))  # type: ignore[arg-type]

    def lose(self) -> None:
        self.is_ready = False
        self.supervisor.executor_lost(self)  # type: ignore[arg-type]

    def say(self, frame: Any) -> None:
        self.supervisor.executor_said(self, frame)  # type: ignore[arg-type]

    def finish(self, job_id: str, seconds: float = 0.1) -> None:
        self.say(Done(job_id, b"{}", seconds))

    @property
    def runs(self) -> list[str]:
        return [frame.job_id for frame in self.sent if isinstance(frame, Run)]

    @property
    def stops(self) -> list[str]:
        return [frame.job_id for frame in self.sent if isinstance(frame, Stop)]


class Bench:
    def __init__(
        self, executors: int, brief_wait: float, modules: Sequence[str] = MODULES, device_cap: int = 0
    ) -> None:
        functions = discover(modules)
        self.changes = 0
        self.supervisor = Supervisor(
            functions, RunnerMetrics(functions), brief_wait, self._changed, device_cap
        )
        self.executors = [Scripted(index, self.supervisor) for index in range(executors)]
        self.supervisor.executors += self.executors  # type: ignore[arg-type]
        self.gateway = Gateway(self.supervisor)

    def _changed(self) -> None:
        self.changes += 1

    async def turn(self) -> None:
        """What was put off until the loop's next turn happens."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def until(self, met: Callable[[], Any]) -> None:
        """What happens as time passes has happened."""
        async with asyncio.timeout(10):
            while not met():
                await asyncio.sleep(0.005)

    def load(self, function: str = "echo") -> int:
        return self.supervisor.loads()[function]

    def told(self, job_id: str) -> Any:
        """The answer, if there is one."""
        future = self.gateway.answers[job_id]
        return future.result() if future.done() else None


def run(
    scenario: Any, *, executors: int = 1, brief_wait: float = 10.0, ready: bool = True, **options: Any
) -> None:
    async def limited() -> None:
        bench = Bench(executors, brief_wait, **options)
        if ready:
            for executor in bench.executors:
                executor.become_ready()
        async with asyncio.timeout(20):
            await scenario(bench)

    asyncio.run(limited())
