"""The runner's side of its warden: start it, tell it what lives and for how long, replace it when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpu_runner import warden
from gpu_runner.children.family import FAMILY
from gpu_runner.clock import boot_time

log = logging.getLogger(__name__)

_PROGRAM = Path(warden.__file__).resolve()
_BEAT_S = 0.5  # of a short lease, a twelfth
_FLOOR_S = 3.0  # as long may any loop hang; with a short lease, half of it
_LOWEST_S = 1.5  # in any case, even where the lease is over by then; with a short one, half of it
_MARGIN_S = 2.0  # of a lease isn't relied on; of a short one, a fifth
_KILLED = 0.75  # of the margin has passed: by then what still runs is to be killed, here as by the runner
_RENEWAL = 1 / 6  # of a lease passes between two renewals
_UNREAD_BYTES = 8192  # a few messages: a warden that reads no more is noticed within seconds
_PAUSES_S = (0.1, 1.0, 5.0)  # before the n-th start in a row
_HEALTHY_S = 30.0  # a warden that lived so long starts the row anew
_END_S = 2.0
_LOOK_S = 0.02


class Warden:
    """A process that ends this one's executors when this one is killed, frozen or hangs.

    Args:
        lease_s: how long a lease is.
        on_killed: called when this process was frozen, with the pids of those executors that have been killed
            meanwhile.
    """

    def __init__(self, lease_s: float, on_killed: Callable[[set[int]], None] = lambda _: None) -> None:
        margin_s = min(_MARGIN_S, lease_s / 5)
        self._every_s = min(_BEAT_S, lease_s / 12)
        self._least_s = min(_FLOOR_S, lease_s / 2)
        self._lowest_s = min(_LOWEST_S, lease_s / 2)
        self._most_s = lease_s * (1 - _RENEWAL) - margin_s
        self._after_s = _KILLED * margin_s
        self._on_killed = on_killed
        self._until = math.inf
        self._executors: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._began = 0.0
        self._failures = 0
        self._starting: asyncio.TimerHandle | None = None
        self._reaping: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        """The process's; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process; one that can't be started, or ends, is started again after a while."""
        self._starting = None
        self._began = time.monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)
        with theirs:
            try:
                # A session of its own: what is sent to the runner's group or from its terminal isn't for it.
                self._process = subprocess.Popen(  # noqa: S603 - our own program and arguments
                    [sys.executable, "-I", "-S", str(_PROGRAM), FAMILY.mark],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                log.error("the warden could not be started: %s", error)
                self._start_later()
                return
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._hear, ours)
        self._tell_news()

    def _start_later(self) -> None:
        if time.monotonic() - self._began > _HEALTHY_S:
            self._failures = 0
        pause = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
        self._failures += 1
        self._starting = asyncio.get_running_loop().call_later(pause, self.start)

    # ------------------------------------------------------------------ what it is told

    def watch(self, pid: int) -> None:
        """An executor lives."""
        self._executors.add(pid)
        self._tell_news()

    def unwatch(self, pid: int) -> None:
        """An executor has ended, and what it had started."""
        self._executors.discard(pid)
        self._tell_news()

    def beat(self, seconds: float) -> None:
        """Executors may run for so long; without another beat they are killed then."""
        self._until = boot_time() + seconds
        self._tell()

    async def keep_beating(self, lease_until: Callable[[], float | None]) -> None:
        """Beat until cancelled.

        Args:
            lease_until: the `boot_time` until which all leases of running jobs are relied on, `math.inf` when
                there are none, None before anything can run.
        """
        while True:
            until = lease_until()
            if until is not None:
                self.beat(self._granted(until - boot_time()))
            await asyncio.sleep(self._every_s)

    def _granted(self, left_s: float) -> float:
        """For how long executors may run while the first lease is relied on for so long.

        When little of it is left, as renewals fail, they may no longer than the lease itself lasts. But a
        busy machine may keep any process waiting for a second, and that mustn't end them.
        """
        wanted = min(max(left_s, self._least_s), left_s + self._after_s, self._most_s)
        return max(wanted, self._lowest_s)

    def _tell_news(self) -> None:
        """Who can tell anything isn't frozen, but may have been until now."""
        self._until = max(self._until, boot_time() + self._lowest_s)
        self._tell()

    def _tell(self) -> None:
        if self._socket is None:
            return
        message = " ".join(map(str, (self._until, FAMILY.server, *sorted(self._executors))))
        try:
            self._socket.send(message.encode())
        except BlockingIOError:
            log.warning("the warden doesn't read what it is told, and is replaced")
            self._replace()
        except OSError:  # it has died, which the reader sees, too
            pass

    # ------------------------------------------------------------------ what it says, and its end

    def _hear(self, ours: socket.socket) -> None:
        try:
            said = ours.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said:
            log.warning("this process was frozen or hung for too long: its executors have been killed")
            self._on_killed({int(pid) for pid in said.split()[1:]})
        else:
            self._replace()

    def _replace(self) -> None:
        if (process := self._let_go()) is not None:
            task = asyncio.create_task(self._bury(process))
            self._reaping.add(task)
            task.add_done_callback(self._reaping.discard)
        self._start_later()

    async def _bury(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for its end, but not for ever: it may sit in the kernel."""
        process.kill()  # does nothing to one that has ended
        exit_code = await _ended(process)
        log.warning("the warden ended with exit code %s; there is another one", exit_code)

    async def close(self) -> None:
        """Let the process end; the executors are gone."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)  # its end is no news
            with contextlib.suppress(OSError):
                self._socket.send(b"end")
        if (process := self._let_go()) is not None and await _ended(process) is None:
            process.kill()
            await _ended(process)
        await asyncio.gather(*self._reaping)

    def _let_go(self) -> subprocess.Popen[bytes] | None:
        """Speak to the process no more; returns it, which may live still."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        process, self._process = self._process, None
        return process


async def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a process that is to end; None when it hasn't in time."""
    for _ in range(round(_END_S / _LOOK_S)):
        if process.poll() is not None:
            break
        await asyncio.sleep(_LOOK_S)
    return process.poll()
