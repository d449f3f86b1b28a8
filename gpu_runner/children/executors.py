"""The supervisor's side of an executor: start it, talk to it, kill it, see it die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from gpu_runner.ahead import Ahead
from gpu_runner.calls import LocalCall
from gpu_runner.children.family import FAMILY, Birth, Child
from gpu_runner.children.stacks import StackFile
from gpu_runner.executor import main, preload
from gpu_runner.executor.device import set_thread_variables
from gpu_runner.executor.main import ExecutorConfig
from gpu_runner.frames import DUMP, INTERRUPT, FromExecutor, Interrupt, Ready, decode_from_executor
from headrace.link.stream import FrameStream

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

    from gpu_runner.residency.preload import Preload

log = logging.getLogger(__name__)

_BACKOFF_S = (0.0, 0.2, 1.0, 5.0, 15.0)  # before the n-th start in a row that came to nothing
_BACKOFF_ONCE_READY_S = 1.0  # the most for one that had loaded its models: others wait for it
_LAST_WORDS_S = 0.5  # for what a dead executor had said to be read
_LAST_WORDS_KILLED_S = 0.1  # of one that was killed: its call has had all its time
_BURY_AGAIN_S = 0.5  # after no thread could be had for it
_HEALTHY_S = 60.0  # an executor that lived so long starts the row anew
_NOT_FOR_FUNCTIONS = ("HEADRACE_DATABASE_URL", "HEADRACE_DATABASE_DIRECT_URL")
"""Who can log in to Postgres can read the link secret: functions and what they import needn't."""


def start_fork_server(heavy_imports: Iterable[str], threads: int = 0) -> ForkServerContext:
    """Start the process from which executors are forked, with the heavy libraries imported.

    It imports while the supervisor does other things. Nothing in it may touch a device: CUDA doesn't
    survive a fork.

    Args:
        heavy_imports: names of modules.
        threads: with how many threads what they load may compute; 0: as many as it likes.
    """
    context = multiprocessing.get_context("forkserver")
    os.environ[preload.VARIABLE] = ",".join(heavy_imports)
    for name in _NOT_FOR_FUNCTIONS:
        os.environ.pop(name, None)
    if threads:
        set_thread_variables(threads)
    os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars are for terminals, executors write to logs
    context.set_forkserver_preload(["gpu_runner.executor.main", "gpu_runner.executor.preload"])
    FAMILY.ensure_server()
    return context


class Watcher(Protocol):
    """Who ends executors when this process can't."""

    def watch(self, pid: int) -> None:
        """An executor lives."""
        ...

    def unwatch(self, pid: int) -> None:
        """It has ended, and what it had started."""
        ...


class ExecutorProcess:
    """One executor, through all its lives.

    Args:
        index: which of the runner's executors it is.
        context: the fork server's.
        config: what the child needs.
        on_ready: called when a life begins with its models loaded.
        on_frame: called with every other frame.
        on_lost: called when a life has ended, before the next begins.
        warden: who ends it when this process can't.
        in_main: the functions that run in the child's main thread; None: all.
    """

    def __init__(
        self,
        index: int,
        context: ForkServerContext,
        config: ExecutorConfig,
        on_ready: Callable[[ExecutorProcess, Ready], None],
        on_frame: Callable[[ExecutorProcess, FromExecutor], None],
        on_lost: Callable[[ExecutorProcess], None],
        warden: Watcher | None = None,
        in_main: Container[str] | None = None,
    ) -> None:
        self.index = index
        self.preload: Callable[[ExecutorProcess], Preload] | None = None
        """Chooses what models a new life loads before it is ready; None: all that are to be there always."""
        self.on_unborn: Callable[[ExecutorProcess], None] = lambda _: None
        """Called when a life for which they were chosen has come to nothing."""
        self.calls: dict[str, LocalCall] = {}
        self.busy: Counter[str] = Counter()
        self.resting: set[str] = set()
        """The names of those among `calls` that have no slot, as they wait for what they have called."""
        self.ahead = Ahead()
        self.degraded: dict[str, str] = {}
        self.lacking: set[str] = set()
        """Functions whose models aren't here, or are about to go: they can't start here for now."""
        self.is_moving = False
        """Whether its main thread loads or unloads a model, or is told to: nothing else starts there."""
        self.closed_for: LocalCall | None = None
        self.is_ready = False
        self.killed_for: LocalCall | None = None
        self.was_frozen = False
        self.exit_code: int | None = None
        self.was_loading = False
        """Whether it was killed as it loaded for too long, or more than there is room for."""
        self.restarts = -1
        self._was_ready = False
        self._has_ended = False
        self._retired = False
        self._context = context
        self._config = msgspec.json.encode(config)
        self._on_ready = on_ready
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._warden = warden
        self._in_main = in_main
        self._child: Child | None = None
        self._stack_file: StackFile | None = None
        self._dumping = asyncio.Lock()
        self._stream: FrameStream[FromExecutor] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether some calls can't start here though there is a slot."""
        return bool(self.degraded or self.lacking or self.is_moving)

    @property
    def pid(self) -> int | None:
        """The child's, or None when there is none."""
        return None if self._child is None else self._child.pid

    async def keep_running(self) -> None:
        """Live, die and live again until cancelled or retired."""
        failures = 0
        was_ready = False
        try:
            while not self._retired:
                pause = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
                if was_ready:
                    pause = min(pause, _BACKOFF_ONCE_READY_S)
                elif failures:
                    log.warning("executor %d is started again in %g s", self.index, pause)
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load
                began = time.monotonic()
                try:
                    lived_ready = was_ready = await self._live()
                except Exception as error:
                    # No process, no memory, no descriptor, or the fork server was lost meanwhile.
                    log.error(
                        "executor %d could not be started: %s: %s", self.index, type(error).__name__, error
                    )
                    await self._end_child()
                    self.on_unborn(self)
                    lived_ready = False
                lived = time.monotonic() - began
                was_sound = self.killed_for is not None or self.was_frozen or self.was_loading
                is_sound = lived > _HEALTHY_S or was_sound
                failures = 0 if lived_ready and is_sound else failures + 1
        finally:
            await self._end_child()

    async def _live(self) -> bool:
        """One life; returns whether it ever was ready."""
        self.restarts += 1
        self.killed_for = None
        self.was_frozen = self.was_loading = False
        self._was_ready = self._has_ended = False
        lost = asyncio.Event()
        ours, child = await self._spawn()
        loop = asyncio.get_running_loop()
        stream = self._stream = FrameStream(
            decode_from_executor, self._receive, lambda reason: self._lost(reason, lost)
        )
        await loop.create_unix_connection(lambda: cast(Any, stream), sock=ours)
        # A process that a body forked holds the socket open: the child's end counts, not only the socket's.
        loop.add_reader(child.sentinel, self._ended, child.sentinel, stream)
        try:
            await lost.wait()
        finally:
            loop.remove_reader(child.sentinel)
            stream.abort()
        # The slot is free only when the process is gone, not when its socket is.
        child.kill()
        self.exit_code = exit_code = await self._bury(child)
        too_soon = "" if self._was_ready else " before it was ready"
        log.warning("executor %d ended with exit code %s%s", self.index, exit_code, too_soon)
        self._on_lost(self)
        return self._was_ready

    def _lost(self, reason: Exception | None, lost: asyncio.Event) -> None:
        if reason is not None and not isinstance(reason, OSError):
            log.error("executor %d sent what is no frame, and is killed: %s", self.index, reason)
        self._note_end()
        lost.set()

    def _note_end(self) -> None:
        """What it has died of is settled, and it gets no other call."""
        self._has_ended = True
        self.is_ready = False

    async def _spawn(self) -> tuple[socket.socket, Child]:
        FAMILY.ensure_server()
        ours, theirs = socket.socketpair()
        birth: Birth | None = None

        def start(birth: Birth) -> Child:
            with theirs:
                return birth.run()

        try:
            process = self._context.Process(
                target=main.run, args=(theirs, self._configured()), name=f"executor {self.index}"
            )
            birth = Birth(FAMILY, process)
            child = self._child = await asyncio.to_thread(start, birth)
        except BaseException:
            ours.close()
            if birth is None:
                theirs.close()
            else:
                self._child = birth.abandon()
            raise
        if self._warden is not None:
            self._warden.watch(child.pid)
        return ours, child

    def _configured(self) -> bytes:
        if self.preload is None:
            return self._config
        config = msgspec.json.decode(self._config, type=ExecutorConfig)
        chosen = self.preload(self)
        return msgspec.json.encode(
            msgspec.structs.replace(config, preload=chosen.models, preload_share=chosen.share)
        )

    async def _end_child(self) -> None:
        """After a start that failed half way, or at the end of all lives."""
        self.kill()
        if self._child is not None:
            await self._bury(self._child)

    async def _bury(self, child: Child) -> int | None:
        """Wait until the process is gone, with all that its functions have started; returns its exit code."""
        while True:
            try:
                exit_code = await asyncio.to_thread(child.bury)
                break
            except RuntimeError as error:  # no thread can be started; the slot isn't free before it is gone
                log.error("executor %d can't be waited for yet: %s", self.index, error)
                await asyncio.sleep(_BURY_AGAIN_S)
        child.close()
        if self._warden is not None:
            self._warden.unwatch(child.pid)
        if self._stack_file is not None:
            self._stack_file.close()
        self._child = self._stack_file = None
        return exit_code

    def _ended(self, sentinel: int, stream: FrameStream[FromExecutor]) -> None:
        """The child is gone; what it said last may still be on its way."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(sentinel)
        self._note_end()
        was_killed = self.killed_for is not None or self.was_loading
        loop.call_later(_LAST_WORDS_KILLED_S if was_killed else _LAST_WORDS_S, stream.abort)

    def _receive(self, frame: FromExecutor) -> None:
        if not isinstance(frame, Ready):
            self._on_frame(self, frame)
        elif self._child is not None and self._child.signal(0):  # else it has ended since it said so
            self.is_ready = self._was_ready = True
            if self._stack_file is None and frame.stacks_fd >= 0:
                with contextlib.suppress(OSError):
                    self._stack_file = StackFile(self._child.pid, frame.stacks_fd)
            self._on_ready(self, frame)

    def send(self, frame: object) -> None:
        """Send a frame to the child; one that has died ignores it."""
        if self._stream is not None:
            self._stream.send(frame)

    def interrupt(self, call: LocalCall) -> None:
        """Have `CallStopped` raised in the call's body; may be repeated."""
        self.send(Interrupt(call.job_id, call.frame.attempt))
        # The thread that would read the frame may be the one that runs the body. Others are told by it; a
        # signal would only break off what a neighbour in the main thread waits for in C.
        if self._in_main is None or call.frame.function in self._in_main:
            # After the frame, which leaves at the end of the loop's turn: the handler is to find it.
            asyncio.get_running_loop().call_soon(self._signal, INTERRUPT)

    def _signal(self, number: int) -> bool:
        """Signal the child once it is ready: before, it may have no handler yet, and would end."""
        return self.is_ready and self._child is not None and self._child.signal(number)

    async def dump(self) -> str:
        """The stacks of all of the child's threads; empty when it doesn't tell, as it blocks all signals."""
        async with self._dumping:
            stack_file = self._stack_file
            if stack_file is None:
                return ""
            try:
                stack_file.clear()
                return await stack_file.settled() if self._signal(DUMP) else ""
            except OSError:  # it has ended
                return ""

    @property
    def has_heard(self) -> bool:
        """Whether the child has read all that was sent to it."""
        return self._stream is None or not self._stream.unread

    def note_frozen(self, pids: Container[int]) -> None:
        """The children of these pids were killed as this process was frozen."""
        if self.pid is not None and self.pid in pids:
            self.was_frozen = True

    def retire(self) -> None:
        """Let this life be the last."""
        self._retired = True

    def kill_loading(self) -> None:
        """End the child as it can't load what it is loading; no call in it is to blame."""
        self.was_loading = True
        self.kill()

    def kill(self, culprit: LocalCall | None = None) -> None:
        """SIGKILL the child; `culprit` is the call for which it dies, unless it has died already."""
        is_alive = not self._has_ended and self._child is not None and self._child.signal(0)
        if is_alive:
            self.killed_for = self.killed_for or culprit
        self.is_ready = False
        if self._child is not None:
            self._child.kill()
