"""An executor process from its start to its end.

The main thread runs synchronous functions, one at a time. Where there are no others, it also reads the
channel, and a running body looks up for stops in `Call.check` and when a signal says so. Otherwise a thread
reads, an event loop in another runs asynchronous functions, and a synchronous one of `concurrency` over 1 has
threads of its own.
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
from types import FrameType
from typing import Any, NoReturn

import msgspec

from gpu_runner.executor.channel import Channel
from gpu_runner.executor.device import choose, limit_threads
from gpu_runner.executor.faults import describe, hide_messages
from gpu_runner.executor.inherited import leave_fork_server, open_stacks
from gpu_runner.executor.interrupts import (
    Body,
    MainBody,
    ThreadBody,
    is_inside,
    signal_main_thread,
    signals_handler,
)
from gpu_runner.executor.loop import BodiesLoop
from gpu_runner.executor.pipeline import Execution
from gpu_runner.executor.residency import Residency
from gpu_runner.frames import INTERRUPT, Interrupt, Ready, Reported, Run, Stop, ToExecutor
from headrace.errors import DeclarationError, SetupError
from headrace.process import adopt_orphans, signal_on_parent_death
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
    serves: tuple[str, ...] = ()
    """The functions of those modules that it serves; none named: all."""


def run(connection: socket.socket, config: bytes) -> None:
    """The target of the child process; `config` is an `ExecutorConfig` as JSON."""
    signal_on_parent_death(signal.SIGKILL)
    os.setpgid(0, 0)  # one group with all that functions start: it is killed as one
    adopt_orphans()  # what leaves the group stays below this process, and is found when it ends
    leave_fork_server()
    for number in (signal.SIGINT, signal.SIGTERM, INTERRUPT):
        # The supervisor ends executors: by closing the channel, or with SIGKILL. No body runs yet.
        signal.signal(number, signal.SIG_IGN)
    stacks_fd = open_stacks()
    logs.configure()
    settings = msgspec.json.decode(config, type=ExecutorConfig)
    hide_messages(settings.log_errors)
    sys.path[:] = [*settings.path]
    limit_threads(settings.threads)
    channel = Channel(connection)
    began = time.perf_counter()
    try:
        found = discover(settings.functions)
    except DeclarationError as error:
        log.error("%s", error)
        sys.exit(1)
    functions = {name: one for name, one in found.items() if name in settings.serves or not settings.serves}
    try:
        device = choose(settings.device)
    except SetupError as error:
        log.error("%s", error)
        device, residency, degraded = None, Residency(Device()), dict.fromkeys(functions, str(error))
    else:
        residency = Residency(device)
        degraded = residency.load_for(functions.values())
    limit_threads(settings.threads)  # again, for what the loaders have imported
    executor = Executor(channel, functions, residency, log_errors=settings.log_errors)
    executor.serve(Ready(str(device or "none"), time.perf_counter() - began, degraded, stacks_fd))


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
        self._bodies = {name: _body_of(function) for name, function in functions.items()}
        self._main: queue.SimpleQueue[Execution] = queue.SimpleQueue()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._running: dict[str, Execution] = {}
        self._queued: set[Execution] = set()
        self._tasks: dict[str, asyncio.Task[Any]] = {}  # touched by the loop's thread only
        self._loop = BodiesLoop()
        self._looking = threading.Lock()
        self._look_again = False
        self._postponed = False
        self._stopped_early: set[tuple[str, int]] = set()
        self._pid = os.getpid()
        self._is_forked = False
        self._handler = self._signalled  # one object, to know it again
        self._is_alone = not any(
            function.is_async or function.manifest.concurrency > 1 for function in functions.values()
        )

    def serve(self, ready: Ready) -> None:
        """Say that models are loaded, and run until the supervisor closes the channel; never returns."""
        try:
            self._listen()
            self._channel.send(ready)
            if self._is_alone:
                self._serve_alone()
            else:
                self._serve_beside()
        except EOFError:
            # The supervisor is gone; a body that still runs must not outlive it.
            os._exit(0)
        except BaseException as error:
            self._give_up(error)

    def _serve_alone(self) -> None:
        """Read and run in turn: a thread that only reads costs a fifth of the executor's time."""
        while True:
            with self._looking:  # a thread that a body left behind may look up still
                frame = self._channel.receive()
            if self._look_again:  # a signal came meanwhile
                self._take_stops()
            if isinstance(frame, Interrupt):
                self._listen()  # its call has ended, maybe as its body lets no signal through
            self._dispatch(frame, self._perform_in_main)

    def _serve_beside(self) -> None:
        """Read in a thread, so that asynchronous functions start while a synchronous one runs."""
        os.register_at_fork(after_in_child=self._after_fork)
        threading.Thread(target=self._loop.run, name="async bodies", daemon=True).start()
        threading.Thread(target=self._read, name="channel", daemon=True).start()
        while True:
            self._perform_in_main(self._main.get())

    def _read(self) -> None:
        try:
            while True:
                self._dispatch(self._channel.receive(), self._main.put)
        except EOFError:
            os._exit(0)
        except BaseException as error:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> NoReturn:
        """End the process for an error of its own: what reads nothing any more mustn't be taken for ready."""
        log.error("the executor has failed, and ends: %s", describe(error, self._log_errors))
        os._exit(1)

    def _after_fork(self) -> None:
        """In a child that an asynchronous body has forked: leave loop and channel to the parent's threads."""
        if self._loop.is_here:
            self._is_forked = True
            self._loop.leave()
            self._channel.close()

    def _look_up(self) -> None:
        """Between two steps of a body: has somebody stopped it? Only where the same thread also reads."""
        self._take_stops()
        self._catch_up()

    def _take_stops(self) -> None:
        """Take what has arrived, unless somebody does already, who then looks once more."""
        if os.getpid() != self._pid:
            return  # a body forked: what comes is for its parent
        self._look_again = True
        while self._look_again and self._looking.acquire(blocking=False):
            try:
                self._look_again = False
                for frame in self._channel.stops():
                    self._end(frame)
            except EOFError:
                os._exit(0)
            finally:
                self._looking.release()

    # ------------------------------------------------------------------ the signal

    def _listen(self) -> None:
        """Have the signal heard: at first, and when a body may have changed that.

        After each call in the main thread it is looked whether the handler is still this one: with the
        signal's default, the next interruption would end the process. That a body has blocked the signal
        would cost more to find out: that is undone after a call that was to be interrupted, so at worst one
        body isn't interrupted, and is killed later.
        """
        signal.signal(INTERRUPT, self._handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (INTERRUPT,))

    def _signalled(self, _number: int, frame: FrameType | None) -> None:
        """Raise `CallStopped` in the main thread's body, if it is due; runs between two steps of it."""
        if self._is_alone:
            self._take_stops()
        for execution in list(self._running.values()):
            body = execution.body
            if isinstance(body, MainBody) and body.is_due:
                if is_inside(frame, _UNBROKEN):
                    self._postponed = True
                else:
                    body.strike(frame)

    def _catch_up(self) -> None:
        """After what mustn't be broken off: have raised what was put off for it."""
        if self._postponed:
            self._postponed = False
            signal_main_thread()

    # ------------------------------------------------------------------ calls

    def _dispatch(self, frame: ToExecutor, run_in_main: Callable[[Execution], None]) -> None:
        if not isinstance(frame, Run):
            self._end(frame)
            return
        function = self._functions[frame.function]
        call = self._call(frame)
        body = self._bodies[frame.function](call)
        execution = Execution(frame, function, call, body, self._residency, self._log_errors)
        self._running[frame.job_id] = execution
        if (frame.job_id, frame.attempt) in self._stopped_early:
            self._stopped_early.discard((frame.job_id, frame.attempt))
            execution.call.stop()
        if function.is_async:
            asyncio.run_coroutine_threadsafe(self._perform_async(execution), self._loop)
        elif function.manifest.concurrency > 1:
            self._submit(execution)
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
            report=lambda fraction, message: self._report(Reported(run.job_id, fraction, message)),
            look_up=self._look_up if self._is_alone else None,
        )

    def _report(self, frame: Reported) -> None:
        if self._is_forked:
            return
        self._channel.send(frame)
        self._catch_up()

    def _end(self, frame: Stop | Interrupt) -> None:
        """Ask a call to end, or have it raised."""
        execution = self._running.get(frame.job_id)
        if execution is None or execution.run.attempt != frame.attempt:
            # It has ended, or its turn hasn't come yet.
            if len(self._stopped_early) >= _MOST_STOPPED_EARLY:
                self._stopped_early.clear()
            self._stopped_early.add((frame.job_id, frame.attempt))
            return
        is_news = isinstance(frame, Stop) or not execution.body.is_interrupted
        if isinstance(frame, Stop):
            execution.call.stop()
        else:
            execution.body.interrupt()
        if execution.function.is_async and is_news:
            self._loop.call_soon_threadsafe(self._cancel, execution)

    def _cancel(self, execution: Execution) -> None:
        task = self._tasks.get(execution.run.job_id)
        if task is not None and self._running.get(execution.run.job_id) is execution:
            task.cancel()

    def _pool(self, function: Function[Any, Any]) -> ThreadPoolExecutor:
        pool = self._pools.get(function.name)
        if pool is None:
            pool = self._pools[function.name] = ThreadPoolExecutor(
                function.manifest.concurrency, thread_name_prefix=function.name
            )
        return pool

    def _submit(self, execution: Execution) -> None:
        """Have it run in its function's pool; where that can't start a thread, this call alone fails."""
        self._queued.add(execution)
        try:
            self._pool(execution.function).submit(self._perform_queued, execution)
        except (RuntimeError, MemoryError) as error:
            # The pool has queued it all the same, and an older thread may have come to it already, or will
            # later and take itself for idle too early: that pool gets no more calls.
            self._pools.pop(execution.function.name).shutdown(wait=False)
            if self._claim(execution):
                del self._running[execution.run.job_id]
                self._channel.send(execution.refused(error))

    def _perform_queued(self, execution: Execution) -> None:
        if self._claim(execution):
            self._perform(execution)

    def _claim(self, execution: Execution) -> bool:
        """Whether it is the caller's to answer; true once."""
        try:
            self._queued.remove(execution)
        except KeyError:
            return False
        return True

    def _perform_in_main(self, execution: Execution) -> None:
        self._perform(execution)
        if execution.body.is_interrupted or signals_handler(INTERRUPT) is not self._handler:
            self._listen()

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
        if os.getpid() != self._pid:
            os._exit(1)
        del self._tasks[job_id], self._running[job_id]
        self._channel.send(outcome)


def _body_of(function: Function[Any, Any]) -> type[Body]:
    if function.is_async:
        return Body
    return ThreadBody if function.manifest.concurrency > 1 else MainBody


_UNBROKEN = (
    Channel.send.__code__,
    Executor._take_stops.__code__,  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - this module's own
)
"""What mustn't be left half-way: a frame, a lock."""
