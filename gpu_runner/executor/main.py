"""An executor process from its start to its end.

The main thread runs synchronous functions, one at a time. Where there are no others, it also reads the
channel, and a running body looks up for stops in `Call.check` and when a signal says so. Otherwise a thread
reads, an event loop in another runs asynchronous functions, and a synchronous one of `concurrency` over 1 has
threads of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import msgspec

from gpu_runner.executor.channel import Channel
from gpu_runner.executor.device import choose, limit_threads
from gpu_runner.executor.faults import describe, hide_messages
from gpu_runner.executor.inherited import leave_fork_server, open_stacks
from gpu_runner.executor.interrupts import MainBody, is_inside, signal_main_thread, signals_handler
from gpu_runner.executor.invoking import Invoking
from gpu_runner.executor.loop import BodiesLoop
from gpu_runner.executor.making import Maker
from gpu_runner.executor.memory import keep_freed
from gpu_runner.executor.pools import Pools
from gpu_runner.executor.priority import lead_group
from gpu_runner.executor.residency import Residency
from gpu_runner.executor.running import Running
from gpu_runner.executor.starts import Start
from gpu_runner.frames import (
    INTERRUPT,
    Credit,
    Interrupt,
    Invoked,
    Load,
    Ready,
    Reported,
    Run,
    RunBatch,
    Stop,
    Streamed,
    ToExecutor,
    Unload,
)
from headrace.errors import DeclarationError, SetupError
from headrace.process import adopt_orphans, signal_on_parent_death
from headrace.sdk import Device, Function
from headrace.sdk.discovery import discover
from headrace.telemetry import logs

log = logging.getLogger(__name__)


class ExecutorConfig(msgspec.Struct, frozen=True):
    """What an executor needs to know at its start."""

    functions: tuple[str, ...]
    device: str
    threads: int
    path: tuple[str, ...]
    log_errors: bool = False
    logs_plainly: bool = False
    """For people at a terminal: warnings and errors only, as text."""
    serves: tuple[str, ...] = ()
    """The functions of those modules that it serves; none named: all."""
    preload: tuple[str, ...] | None = None
    """The models that it loads before it is ready; None: all that are to be there always."""
    preload_share: float = 1.0
    """Of `memory`, what those may take together."""
    memory: int = 0
    """What all executors may take of a CUDA device together, in bytes; 0: what is usual."""
    nice: int = 0
    """By how much it comes after other processes of the machine, 0 to 19."""


def run(connection: socket.socket, config: bytes) -> None:
    """The target of the child process; `config` is an `ExecutorConfig` as JSON."""
    signal_on_parent_death(signal.SIGKILL)
    settings = msgspec.json.decode(config, type=ExecutorConfig)
    if settings.logs_plainly:
        logs.configure_plain()
    else:
        logs.configure()
    lead_group(settings.nice)  # with all that functions start: it is killed as one
    adopt_orphans()  # what leaves the group stays below this process, and is found when it ends
    leave_fork_server()
    for number in (signal.SIGINT, signal.SIGTERM, INTERRUPT):
        # The supervisor ends executors: by closing the channel, or with SIGKILL. No body runs yet.
        signal.signal(number, signal.SIG_IGN)
    stacks_fd = open_stacks()
    hide_messages(settings.log_errors)
    sys.path[:] = [*settings.path]
    limit_threads(settings.threads)
    keep_freed()
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
        degraded = {}
        residency = Residency(device, functions.values(), channel.send, settings.memory)
        residency.load_at_start(settings.preload, settings.preload_share)
    limit_threads(settings.threads)  # again, for what the loaders have imported
    executor = Executor(channel, functions, residency, log_errors=settings.log_errors)
    load_s = time.perf_counter() - began
    executor.serve(Ready(str(device or "none"), load_s, degraded, stacks_fd, residency.total))


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
        self._residency = residency
        self._log_errors = log_errors
        self._main: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pools = Pools(self._perform, self._refuse)
        self._running = Running()
        self._tasks: dict[Start, asyncio.Task[Any]] = {}  # touched by the loop's thread only
        self._loop = BodiesLoop()
        self._looking = threading.Lock()
        self._look_again = False
        self._postponed = False
        self._pid = os.getpid()
        self._is_forked = False
        self._handler = self._signalled  # one object, to know it again
        self._is_alone = not any(
            function.is_async or function.is_streaming or function.manifest.concurrency > 1
            for function in functions.values()
        )
        look_up = self._look_up if self._is_alone else None
        self._invoking = Invoking(channel.send)
        self._maker = Maker(
            functions, residency, self._tell, look_up, self._invoking.of, log_errors=log_errors
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
            self._dispatch(frame, _at_once)

    def _serve_beside(self) -> None:
        """Read in a thread, so that asynchronous functions start while a synchronous one runs."""
        os.register_at_fork(after_in_child=self._after_fork)
        threading.Thread(target=self._loop.run, name="async bodies", daemon=True).start()
        threading.Thread(target=self._read, name="channel", daemon=True).start()
        while True:
            self._main.get()()

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
        for start in self._running.all():
            body = start.body
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

    def _dispatch(self, frame: ToExecutor, in_main: Callable[[Callable[[], None]], None]) -> None:
        """Do what a frame says; `in_main` takes what the main thread is to do, each in its turn."""
        match frame:
            case Stop() | Interrupt():
                self._end(frame)
            case Run() | RunBatch():
                self._begin(self._maker.make(frame), in_main)
            case Credit():
                self._grant(frame)
            case Invoked():
                self._invoking.answered(frame)
            case Load():
                in_main(partial(self._move, partial(self._residency.load, frame.model, frame.limit)))
            case Unload():
                in_main(partial(self._move, partial(self._residency.unload, frame.model)))

    def _move(self, move: Callable[[], None]) -> None:
        """Load or unload a model."""
        move()
        if signals_handler(INTERRUPT) is not self._handler:  # a loader has set its own
            self._listen()

    def _begin(self, start: Start, in_main: Callable[[Callable[[], None]], None]) -> None:
        self._running.add(start)
        if start.function.is_async:
            asyncio.run_coroutine_threadsafe(self._perform_async(start), self._loop)
        elif start.function.manifest.concurrency > 1:
            self._pools.submit(start)
        else:
            in_main(partial(self._perform_in_main, start))

    def _tell(self, frame: Reported | Streamed) -> None:
        if self._is_forked:
            return
        if isinstance(frame, Streamed) and self._loop.is_here:
            if self._channel.hold(frame):  # what bodies yield in one turn of the loop leaves at its end
                self._loop.call_soon(self._flush)
        else:
            self._channel.send(frame)
        self._catch_up()

    def _flush(self) -> None:
        with contextlib.suppress(EOFError):  # the thread that reads ends the process
            self._channel.flush()

    def _grant(self, frame: Credit) -> None:
        start = self._running.get(frame.job_id, frame.attempt)
        if start is not None:
            start.grant(frame.items)

    def _end(self, frame: Stop | Interrupt) -> None:
        """Ask a call to end, or have it raised."""
        start = self._running.get(frame.job_id, frame.attempt)
        if start is None:
            self._running.stop_early(frame.job_id, frame.attempt)
            return
        ends = start.stop(frame.job_id) if isinstance(frame, Stop) else start.interrupt()
        if start.function.is_async and ends:
            self._loop.call_soon_threadsafe(self._cancel, start)

    def _cancel(self, start: Start) -> None:
        task = self._tasks.get(start)
        if task is not None:
            task.cancel()

    def _perform_in_main(self, start: Start) -> None:
        self._perform(start)
        if start.body.is_interrupted or signals_handler(INTERRUPT) is not self._handler:
            self._listen()

    def _perform(self, start: Start) -> None:
        for outcome in start.perform():
            if os.getpid() != self._pid:
                os._exit(1)  # a body forked, and the child came back: answering isn't its business
            self._channel.send(outcome)
        self._running.remove(start)

    async def _perform_async(self, start: Start) -> None:
        if task := asyncio.current_task():
            self._tasks[start] = task
        async for outcome in start.perform_async():
            if os.getpid() != self._pid:
                os._exit(1)
            self._channel.send(outcome)
        del self._tasks[start]
        self._running.remove(start)

    def _refuse(self, start: Start, error: Exception) -> None:
        self._running.remove(start)
        for outcome in start.refused(error):
            self._channel.send(outcome)


def _at_once(work: Callable[[], None]) -> None:
    work()


_UNBROKEN = (
    Channel.send.__code__,
    Executor._take_stops.__code__,  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - this module's own
)
"""What mustn't be left half-way: a frame, a lock."""
