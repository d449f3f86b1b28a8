"""An executor process from its start to its end.

The main thread runs synchronous functions, one at a time. Where there are no others, it also reads the
channel, and a running body looks up for stops in `Call.check`. Otherwise a thread reads, an event loop in
another runs asynchronous functions, and a synchronous one of `concurrency` over 1 has threads of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from gpu_runner.executor.channel import Channel
from gpu_runner.executor.device import choose, limit_threads
from gpu_runner.executor.faults import hide_messages
from gpu_runner.executor.pipeline import Execution
from gpu_runner.executor.residency import Residency
from gpu_runner.frames import Ready, Reported, Run, Stop, ToExecutor
from headrace.errors import SetupError
from headrace.process import signal_on_parent_death
from headrace.sdk import Call, Device, Function
from headrace.sdk.discovery import discover
from headrace.telemetry import logs

log = logging.getLogger(__name__)

_MOST_STOPPED_EARLY = 1000


class ExecutorConfig(msgspec.Struct, frozen=True):
    """What an executor needs to know at its start."""

    functions: tuple[str, ...]
    device: str
    threads: int
    path: tuple[str, ...]
    log_errors: bool = False


def run(connection: socket.socket, config: bytes) -> None:
    """The target of the child process; `config` is an `ExecutorConfig` as JSON."""
    signal_on_parent_death(signal.SIGKILL)
    os.setpgid(0, 0)  # one group with all that functions start: it is killed as one
    for number in (signal.SIGINT, signal.SIGTERM):
        # The supervisor ends executors: by closing the channel, or with SIGKILL.
        signal.signal(number, signal.SIG_IGN)
    logs.configure()
    settings = msgspec.json.decode(config, type=ExecutorConfig)
    hide_messages(settings.log_errors)
    sys.path[:] = [*settings.path]
    channel = Channel(connection)
    began = time.perf_counter()
    functions = discover(settings.functions)
    try:
        device = choose(settings.device)
    except SetupError as error:
        log.error("%s", error)
        device, residency, degraded = None, Residency(Device()), dict.fromkeys(functions, str(error))
    else:
        residency = Residency(device)
        degraded = residency.load_for(functions.values())
    limit_threads(settings.threads)
    executor = Executor(channel, functions, residency, log_errors=settings.log_errors)
    executor.serve(Ready(str(device or "none"), time.perf_counter() - began, degraded))


class Executor:
    """Takes calls from the channel, runs them, and answers.

    Args:
        channel: the supervisor.
        functions: by name.
        residency: the loaded models.
        log_errors: whether messages of functions' exceptions are logged.
    """

    def __init__(
        self,
        channel: Channel,
        functions: Mapping[str, Function[Any, Any]],
        residency: Residency,
        *,
        log_errors: bool = False,
    ) -> None:
        self._channel = channel
        self._functions = functions
        self._residency = residency
        self._log_errors = log_errors
        self._main: queue.SimpleQueue[Execution] = queue.SimpleQueue()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._running: dict[str, Execution] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}  # touched by the loop's thread only
        self._loop = asyncio.new_event_loop()
        self._looking = threading.Lock()
        self._stopped_early: set[str] = set()
        self._pid = os.getpid()
        self._is_alone = not any(
            function.is_async or function.manifest.concurrency > 1 for function in functions.values()
        )

    def serve(self, ready: Ready) -> None:
        """Say that models are loaded, and run until the supervisor closes the channel; never returns."""
        try:
            self._channel.send(ready)
            if self._is_alone:
                self._serve_alone()
            else:
                self._serve_beside()
        except EOFError:
            # The supervisor is gone; a body that still runs must not outlive it.
            os._exit(0)

    def _serve_alone(self) -> None:
        """Read and run in turn: a thread that only reads costs a fifth of the executor's time."""
        while True:
            with self._looking:  # a thread that a body left behind may look up still
                frame = self._channel.receive()
            self._dispatch(frame, self._perform)

    def _serve_beside(self) -> None:
        """Read in a thread, so that asynchronous functions start while a synchronous one runs."""
        threading.Thread(target=self._run_loop, name="async bodies", daemon=True).start()
        threading.Thread(target=self._read, name="channel", daemon=True).start()
        while True:
            self._perform(self._main.get())

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except BaseException:  # SystemExit in a task that a body left behind passes through the loop
                log.exception("a task that a function started ended the event loop; it goes on")

    def _read(self) -> None:
        try:
            while True:
                self._dispatch(self._channel.receive(), self._main.put)
        except EOFError:
            os._exit(0)

    def _look_up(self) -> None:
        """Between two steps of a body, in the thread that also reads: has somebody stopped it?"""
        if self._looking.acquire(blocking=False):
            try:
                for stop in self._channel.stops():
                    self._stop(stop.job_id)
            except EOFError:
                os._exit(0)
            finally:
                self._looking.release()

    def _dispatch(self, frame: ToExecutor, run_in_main: Callable[[Execution], None]) -> None:
        if isinstance(frame, Stop):
            self._stop(frame.job_id)
            return
        function = self._functions[frame.function]
        execution = Execution(frame, function, self._call(frame), self._residency, self._log_errors)
        self._running[frame.job_id] = execution
        if frame.job_id in self._stopped_early:
            self._stopped_early.discard(frame.job_id)
            execution.call.stop()
        if function.is_async:
            asyncio.run_coroutine_threadsafe(self._perform_async(execution), self._loop)
        elif function.manifest.concurrency > 1:
            self._pool(function).submit(self._perform, execution)
        else:
            run_in_main(execution)

    def _call(self, run: Run) -> Call:
        now = time.monotonic()
        hard = self._functions[run.function].manifest.budget.hard
        return Call(
            job_id=run.job_id,
            attempt=run.attempt,
            soft_at=now + run.soft_s,
            deadline_at=min(now + hard, run.deadline_at),
            report=lambda fraction, message: self._channel.send(Reported(run.job_id, fraction, message)),
            look_up=self._look_up if self._is_alone else None,
        )

    def _stop(self, job_id: str) -> None:
        execution = self._running.get(job_id)
        if execution is None:
            # It has ended, or its turn hasn't come yet.
            if len(self._stopped_early) >= _MOST_STOPPED_EARLY:
                self._stopped_early.clear()
            self._stopped_early.add(job_id)
            return
        execution.call.stop()
        if execution.function.is_async:
            self._loop.call_soon_threadsafe(self._cancel, job_id)

    def _cancel(self, job_id: str) -> None:
        if task := self._tasks.get(job_id):
            task.cancel()

    def _pool(self, function: Function[Any, Any]) -> ThreadPoolExecutor:
        pool = self._pools.get(function.name)
        if pool is None:
            pool = self._pools[function.name] = ThreadPoolExecutor(
                function.manifest.concurrency, thread_name_prefix=function.name
            )
        return pool

    def _perform(self, execution: Execution) -> None:
        outcome = execution.perform()
        if os.getpid() != self._pid:
            os._exit(1)  # a body forked, and the child came back: answering isn't its business
        del self._running[execution.run.job_id]
        self._channel.send(outcome)

    async def _perform_async(self, execution: Execution) -> None:
        job_id = execution.run.job_id
        if task := asyncio.current_task():
            self._tasks[job_id] = task
        outcome = await execution.perform_async()
        del self._tasks[job_id], self._running[job_id]
        self._channel.send(outcome)
