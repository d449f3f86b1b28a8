"""The supervisor's side of an executor: start it, talk to it, kill it, see it die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from gpu_runner.ahead import Ahead
from gpu_runner.calls import DirectCall
from gpu_runner.executor import main, preload
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.frames import FromExecutor, Ready, decode_from_executor
from headrace.link.stream import FrameStream

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

log = logging.getLogger(__name__)

_BACKOFF_S = (0.0, 0.2, 1.0, 5.0, 15.0)  # before the n-th start in a row that came to nothing
_BACKOFF_ONCE_READY_S = 1.0  # the most for one that had loaded its models: others wait for it
_LAST_WORDS_S = 0.5  # for what a dead executor had said to be read
_HEALTHY_S = 60.0  # an executor that lived so long starts the row anew
_NOT_FOR_FUNCTIONS = ("HEADRACE_DATABASE_URL", "HEADRACE_DATABASE_DIRECT_URL")
"""Who can log in to Postgres can read the link secret: functions and what they import needn't."""


def start_fork_server(heavy_imports: Iterable[str]) -> ForkServerContext:
    """Start the process from which executors are forked, with the heavy libraries imported.

    It imports while the supervisor does other things. Nothing in it may touch a device: CUDA doesn't
    survive a fork.
    """
    context = multiprocessing.get_context("forkserver")
    os.environ[preload.VARIABLE] = ",".join(heavy_imports)
    for name in _NOT_FOR_FUNCTIONS:
        os.environ.pop(name, None)
    os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars are for terminals, executors write to logs
    context.set_forkserver_preload(["gpu_runner.executor.main", "gpu_runner.executor.preload"])
    from multiprocessing import forkserver  # noqa: PLC0415 - only to start it early

    forkserver.ensure_running()
    return context


class ExecutorProcess:
    """One executor, through all its lives.

    Args:
        index: which of the runner's executors it is.
        context: the fork server's.
        config: what the child needs.
        on_ready: called when a life begins with its models loaded.
        on_frame: called with every other frame.
        on_lost: called when a life has ended, before the next begins.
    """

    def __init__(
        self,
        index: int,
        context: ForkServerContext,
        config: ExecutorConfig,
        on_ready: Callable[[ExecutorProcess, Ready], None],
        on_frame: Callable[[ExecutorProcess, FromExecutor], None],
        on_lost: Callable[[ExecutorProcess], None],
    ) -> None:
        self.index = index
        self.calls: dict[str, DirectCall] = {}
        self.busy: Counter[str] = Counter()
        self.ahead = Ahead()
        self.degraded: dict[str, str] = {}
        self.is_ready = False
        self.killed_for: DirectCall | None = None
        self.restarts = -1
        self._was_ready = False
        self._context = context
        self._config = msgspec.json.encode(config)
        self._on_ready = on_ready
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._process: ForkServerProcess | None = None
        self._stream: FrameStream[FromExecutor] | None = None

    async def keep_running(self) -> None:
        """Live, die and live again until cancelled."""
        failures = 0
        was_ready = False
        try:
            while True:
                pause = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
                if was_ready:
                    pause = min(pause, _BACKOFF_ONCE_READY_S)
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load
                began = time.monotonic()
                try:
                    lived_ready = was_ready = await self._live()
                except Exception as error:
                    # No process, no memory, no descriptor, or the fork server was lost meanwhile.
                    log.error(
                        "executor %d could not be started: %s: %s", self.index, type(error).__name__, error
                    )
                    self._clean_up()
                    lived_ready = False
                lived = time.monotonic() - began
                failures = 0 if lived_ready and (lived > _HEALTHY_S or self.killed_for) else failures + 1
        finally:
            self.kill()

    async def _live(self) -> bool:
        """One life; returns whether it ever was ready."""
        self.restarts += 1
        self.killed_for = None
        self._was_ready = False
        lost = asyncio.Event()
        ours, process = await self._spawn()
        loop = asyncio.get_running_loop()
        stream = self._stream = FrameStream(decode_from_executor, self._receive, lambda _: lost.set())
        await loop.create_unix_connection(lambda: cast(Any, stream), sock=ours)
        # A process that a body forked holds the socket open: the child's end counts, not only the socket's.
        loop.add_reader(process.sentinel, self._ended, process.sentinel, stream)
        try:
            await lost.wait()
        finally:
            loop.remove_reader(process.sentinel)
            stream.abort()
        self.is_ready = False
        # The slot is free only when the process is gone, not when its socket is.
        _kill(process)
        await asyncio.to_thread(process.join)
        log.warning("executor %d ended with exit code %s", self.index, process.exitcode)
        process.close()
        self._process = None
        self._on_lost(self)
        return self._was_ready

    async def _spawn(self) -> tuple[socket.socket, ForkServerProcess]:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = self._process = self._context.Process(
                    target=main.run, args=(theirs, self._config), name=f"executor {self.index}"
                )
                # Waits for the fork server, which may still be importing.
                await asyncio.to_thread(process.start)
        except BaseException:
            ours.close()
            raise
        return ours, process

    def _clean_up(self) -> None:
        """After a start that failed half way."""
        if self._stream is not None:
            self._stream.abort()
        if self._process is not None:
            _kill(self._process)
        self._process = None

    def _ended(self, sentinel: int, stream: FrameStream[FromExecutor]) -> None:
        """The child is gone; what it said last may still be on its way."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(sentinel)
        loop.call_later(_LAST_WORDS_S, stream.abort)

    def _receive(self, frame: FromExecutor) -> None:
        if isinstance(frame, Ready):
            self.is_ready = self._was_ready = True
            self._on_ready(self, frame)
        else:
            self._on_frame(self, frame)

    def send(self, frame: object) -> None:
        """Send a frame to the child; one that has died ignores it."""
        if self._stream is not None:
            self._stream.send(frame)

    def kill(self, culprit: DirectCall | None = None) -> None:
        """SIGKILL the child; `culprit` is the call for which it dies."""
        self.killed_for = self.killed_for or culprit
        self.is_ready = False
        if self._process is not None:
            _kill(self._process)


def _kill(process: ForkServerProcess) -> None:
    """SIGKILL an executor and what its functions have started: they are one process group."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # it may not have made its group yet
