"""The executors of this process, and what their functions have left behind.

Executors and the fork server adopt orphans: what a function has started stays below its executor, also when
it has left the process group and its parent has ended. When the executor ends, it becomes a child of the fork
server, which has no other children than executors.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import threading
import time
import uuid
from multiprocessing import forkserver, resource_tracker
from typing import TYPE_CHECKING

from gpu_runner.warden import MARK, descendants, entry, kill, marked, processes

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

log = logging.getLogger(__name__)

_GIVE_UP_S = 1.0  # on what no signal ends; the next burial looks again
_AGAIN_S = 0.003
_LOOK_S = 1.0


class Child:
    """One executor's process, known by more than its pid, which the kernel gives away again."""

    def __init__(self, family: Family, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self.sentinel = process.sentinel
        self._family = family
        self._process = process
        self._burying = threading.Lock()
        self._exit_code: int | None = None
        self._is_buried = False
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended already
            self._pidfd = -1

    def signal(self, number: int) -> bool:
        """Signal the process alone; returns whether it was there still."""
        if self._pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL it and its process group; what has left that is ended by `bury`."""
        if self.signal(0):
            with contextlib.suppress(ProcessLookupError):  # it may not have made its group yet
                os.killpg(self.pid, signal.SIGKILL)
            self.signal(signal.SIGKILL)

    def bury(self) -> int | None:
        """Wait until the process is gone, and end what it has left; returns its exit code. Blocks.

        A second time does no harm: what couldn't be handed to a new thread may be done by an old one, later.
        """
        with self._burying:
            if not self._is_buried:
                self._process.join()
                self._family.sweep_after(self.pid)
                self._exit_code = self._process.exitcode
                self._process.close()
                self._is_buried = True
            return self._exit_code

    def close(self) -> None:
        """Forget the process. Where signals are sent: another thread could reuse the descriptor meanwhile."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class Birth:
    """The start of an executor, which may be given up while it is under way."""

    def __init__(self, family: Family, process: ForkServerProcess) -> None:
        self._family = family
        self._process = process
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._is_abandoned = False

    def run(self) -> Child:
        """Start it; waits for the fork server, which may still be importing. Raises like `Family.start`."""
        child = self._family.start(self._process)
        with self._lock:
            self._child = child
            is_abandoned = self._is_abandoned
        if is_abandoned:
            child.kill()
            child.bury()
            child.close()
        return child

    def abandon(self) -> Child | None:
        """Nobody waits for it any more: who has been born is the caller's, who will be is ended at once."""
        with self._lock:
            self._is_abandoned = True
            return self._child


class Family:
    """One per process, as the fork server is.

    Newborn executors are known only when their start has returned; so nothing is swept away while one starts.
    """

    def __init__(self) -> None:
        self.mark = str(uuid.uuid4())
        self.server = 0
        self._server_began = 0
        self._lock = threading.Condition()
        self._starting = 0
        self._was_stopped = False
        self._executors: set[int] = set()

    def ensure_server(self) -> None:
        """Have a fork server; call it in the main thread, with whose end the fork server ends.

        Raises:
            OSError: it can't be started.
        """
        resource_tracker.ensure_running()  # not a member: it isn't to have the mark
        os.environ[MARK] = self.mark
        try:
            forkserver.ensure_running()
        finally:
            del os.environ[MARK]

    async def keep_server_going(self) -> None:
        """Look until cancelled whether a function has stopped the fork server by a signal.

        It is killed then, as nothing could be started or buried any more; the next start makes another one.
        """
        while True:
            await asyncio.sleep(_LOOK_S)
            one = entry(self.server) if self.server else None
            is_stopped = one is not None and one.began == self._server_began and one.is_stopped
            if one is not None and is_stopped and self._was_stopped:
                log.error("the fork server was stopped by a signal, and is killed: executors start anew")
                kill({self.server: one}, {self.server})
            self._was_stopped = is_stopped

    def start(self, process: ForkServerProcess) -> Child:
        """Start an executor. Blocks until it has a pid.

        Raises:
            OSError: it can't be started, or the fork server was lost meanwhile. `EOFError` says the same.
        """
        with self._lock:
            self._starting += 1
        try:
            process.start()
        finally:
            with self._lock:
                self._starting -= 1
                if process.pid is not None:
                    self._executors.add(process.pid)
                    self._note_server(process.pid)
                self._lock.notify_all()
        try:
            return Child(self, process)
        except OSError:  # no descriptor is left to know it by
            assert process.pid is not None
            process.kill()
            process.join()
            self.sweep_after(process.pid)
            process.close()
            raise

    def _note_server(self, executor: int) -> None:
        """There is another fork server if one was killed: its executors ended with it, not all orphans."""
        one = entry(executor)
        server = entry(one.parent) if one is not None else None
        if one is None or server is None or server.parent != os.getpid():
            return  # it has ended, or the fork server has, and somebody else is the parent
        is_another = self.server not in (0, one.parent)
        self.server, self._server_began = one.parent, server.began
        if is_another:
            log.warning("the fork server was lost; there is another one")
            try:
                found = processes()
            except OSError as error:
                log.warning("what stems from the lost one could not be looked for: %s", error)
                return
            ours = descendants(found, {self.server}) | {self.server}
            kill(found, marked(found, self.mark) - ours)

    def sweep_after(self, executor: int) -> None:
        """End what an executor that is gone has left behind; waits for that, but not for ever.

        Only what no signal ends is given up, after a second. That one starts, and the fork server imports
        meanwhile, isn't counted.
        """
        left_s = _GIVE_UP_S
        reason = "no signal ends it"
        with self._lock:
            self._executors.discard(executor)
            while left_s > 0:
                self._lock.wait_for(lambda: not self._starting)
                began = time.monotonic()
                try:
                    if not self._sweep():
                        return
                except OSError as error:  # no descriptor is left to look with
                    reason = str(error)
                self._lock.wait(_AGAIN_S)
                left_s -= time.monotonic() - began
        log.warning("something that an executor has left behind may live on: %s", reason)

    def _sweep(self) -> bool:
        """Kill all orphans; returns whether there was one alive. With the lock, while nothing starts.

        Raises:
            OSError: the kernel doesn't tell what there is.
        """
        found = processes()
        if os.getpid() not in found:
            raise OSError(errno.EMFILE, "no process can be looked at")
        server = found.get(self.server)
        if server is None or server.began != self._server_began:
            return False
        orphans = {pid for pid, one in found.items() if one.parent == self.server} - self._executors
        return kill(found, orphans | descendants(found, orphans))


FAMILY = Family()
"""This process's."""
