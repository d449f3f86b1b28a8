"""Real executors with nobody above them: calls are sent to one by name, and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpu_runner.bench import probe
from gpu_runner.bench.probe import Memory
from gpu_runner.bench.results import Loading
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.frames import (
    BatchEnded,
    BatchItem,
    Done,
    Failed,
    FromExecutor,
    Loaded,
    LoadFailed,
    Ready,
    Run,
    RunBatch,
)
from gpu_runner.tasks import end
from headrace.errors import SetupError
from headrace.sdk import Function
from headrace.settings import Settings

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

Answer = Done | Failed | BatchEnded


class CallFailed(SetupError):
    """A call has no output. `category` is that of its error."""

    def __init__(self, function: str, category: str, message: str) -> None:
        super().__init__(f"{function} failed: {category}: {message}")
        self.category = category


class Rack:
    """Executors that have the function and its models loaded. Made by `rack`."""

    def __init__(self, function: Function[Any, Any], executors: int) -> None:
        self.function = function
        self.readies: list[Ready] = []
        self.models: list[Loading] = []
        self.executors: list[ExecutorProcess] = []
        self._size = executors
        self._degraded = ""
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[str, tuple[ExecutorProcess, asyncio.Future[Answer]]] = {}
        self._failed: dict[str, Failed] = {}
        self._numbers = itertools.count(1)

    async def until_ready(self) -> None:
        """Wait until all of them take calls.

        Raises:
            SetupError: one ended before, or can't run the function.
        """
        await self._ready
        for ready in self.readies:
            if reason := ready.degraded.get(self.function.name) or self._degraded:
                raise SetupError(f"{self.function.name} is degraded: {reason}")

    async def call(self, at: int, data: bytes) -> float:
        """Make one call in that executor; returns how long it took there.

        Raises:
            CallFailed: it has no output.
            SetupError: the executor ended, or the call took longer than it may.
        """
        name, budget = self.function.name, self.function.manifest.budget
        answer = await self._answer(at, lambda job_id: self._run(job_id, name, data), budget.hard)
        if isinstance(answer, Failed):
            raise CallFailed(name, answer.category, answer.message)
        assert isinstance(answer, Done)
        return answer.exec_s

    async def batch(self, at: int, data: Sequence[bytes]) -> tuple[float, int]:
        """Make these calls as one; returns how long they took, and how often the body ran.

        Raises as `call`.
        """
        budget = self.function.manifest.budget
        deadline_at = time.monotonic() + budget.total

        def frame(job_id: str) -> RunBatch:
            items = [BatchItem(f"{job_id}/{number}", one, 1, deadline_at) for number, one in enumerate(data)]
            return RunBatch(job_id, self.function.name, tuple(items), budget.soft_limit)

        answer = await self._answer(at, frame, budget.hard)
        if failed := self._failed.pop(answer.job_id, None):
            raise CallFailed(self.function.name, failed.category, failed.message)
        assert isinstance(answer, BatchEnded)
        return answer.exec_s, len(answer.passes)

    async def memory(self, at: int = 0) -> Memory:
        """What that executor has in memory, and had at most since the last look."""
        answer = await self._answer(at, lambda job_id: self._run(job_id, probe.NAME, b"0"), 30.0)
        assert isinstance(answer, Done)
        return Memory.model_validate_json(answer.output)

    def _run(self, job_id: str, function: str, data: bytes) -> Run:
        budget = self.function.manifest.budget
        return Run(job_id, function, data, 1, budget.soft_limit, time.monotonic() + budget.total)

    async def _answer(self, at: int, frame: Callable[[str], Run | RunBatch], limit_s: float) -> Answer:
        job_id, executor = str(next(self._numbers)), self.executors[at]
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[job_id] = executor, future
        executor.send(frame(job_id))
        try:
            async with asyncio.timeout(limit_s):
                return await future
        except TimeoutError:
            raise SetupError(f"{self.function.name} took over its hard limit of {limit_s:g} s") from None
        finally:
            self._waiting.pop(job_id, None)

    # ------------------------------------------------------------------ what executors say

    def is_ready(self, _executor: ExecutorProcess, frame: Ready) -> None:
        """One has loaded its models."""
        self.readies.append(frame)
        if len(self.readies) == self._size and not self._ready.done():
            self._ready.set_result(None)

    def said(self, _executor: ExecutorProcess, frame: FromExecutor) -> None:
        """One has answered, or tells of a model."""
        match frame:
            case Loaded():
                self.models.append(Loading(frame.model, frame.bytes, frame.seconds))
            case LoadFailed():
                self._degraded = frame.reason
            case Done() | Failed() | BatchEnded():
                self._answered(frame)
            case _:
                pass

    def _answered(self, frame: Answer) -> None:
        batch, _, of_batch = frame.job_id.partition("/")
        if of_batch:
            if isinstance(frame, Failed):
                self._failed[batch] = frame
        elif (found := self._waiting.get(frame.job_id)) and not found[1].done():
            found[1].set_result(frame)

    def lost(self, executor: ExecutorProcess) -> None:
        """One has ended: it isn't started again."""
        executor.retire()
        error = SetupError(
            f"an executor of {self.function.name} ended by itself; above is what it said"
            if len(self.readies) < self._size
            else f"an executor ended while it ran {self.function.name}: it crashed, or was out of memory"
        )
        if not self._ready.done():
            self._ready.set_exception(error)
        for owner, future in list(self._waiting.values()):
            if owner is executor and not future.done():
                future.set_exception(error)


@contextlib.asynccontextmanager
async def rack(
    function: Function[Any, Any],
    settings: Settings,
    context: ForkServerContext,
    executors: int,
    threads: int,
) -> AsyncGenerator[Rack]:
    """So many executors of that many threads, ready; they are ended at the end.

    Raises:
        SetupError: they can't run the function.
    """
    made = Rack(function, executors)
    config = ExecutorConfig(
        functions=(*settings.functions, probe.__name__),
        device=settings.device,
        threads=threads,
        path=tuple(sys.path),
        log_errors=True,
        logs_plainly=True,
        serves=(function.name, probe.NAME),
        preload=tuple(model.name for model in function.models.values()),
        memory=settings.memory,
    )
    async with contextlib.AsyncExitStack() as stack:
        for index in range(executors):
            executor = ExecutorProcess(index, context, config, made.is_ready, made.said, made.lost)
            made.executors.append(executor)
            stack.push_async_callback(end, asyncio.create_task(executor.keep_running()))
        await made.until_ready()
        yield made
