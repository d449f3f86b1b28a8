"""A small process beside each runner, which ends its executors when the runner itself can't.

The kernel kills executors whose runner is killed, but neither what their functions have started, nor anything
while the runner is only frozen. The warden does. It knows the runner by a socket, its standard input:

- each message is the complete state: the instant of `CLOCK_BOOTTIME` until which executors may run, the pid
  of the fork server or 0, and the pids of the executors;
- the end of the socket means that the runner is gone: everything is killed, and the warden ends;
- the instant has passed without another message: the runner is frozen, or its loop hangs. The warden says
  `killed` and the pids of the executors, kills everything but the fork server, and stays;
- `end`: the runner leaves in order, and has killed its executors.

It must start quickly and be small, so it imports next to nothing, and nothing of Headrace.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

MARK = "_HEADRACE_FAMILY"
"""The variable with which the fork server is started. Who has it stems from it, whatever else has ended."""

_LOOK_S = 0.5  # at most between two looks at the clock: while a machine sleeps, timeouts don't count
_GIVE_UP_S = 5.0  # on what no signal ends: it sits in the kernel
_AGAIN_S = 0.003


class Entry:
    """One process of the machine."""

    __slots__ = ("began", "group", "is_dead", "is_stopped", "parent")

    def __init__(self, stat: bytes) -> None:
        state, parent, group, *others = stat.rpartition(b")")[2].split()
        self.is_dead = state in (b"Z", b"X")
        self.is_stopped = state == b"T"
        self.parent = int(parent)
        self.group = int(group)
        self.began = int(others[16])


def _read(path: str) -> bytes:
    """A file in /proc; empty when its process is gone or another user's."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    parts: list[bytes] = []
    try:
        while part := os.read(file, 65536):
            parts.append(part)
    except OSError:
        return b""
    finally:
        os.close(file)
    return b"".join(parts)


def entry(pid: int) -> Entry | None:
    """What the kernel says of a process; None when it is gone."""
    stat = _read(f"/proc/{pid}/stat")
    return Entry(stat) if stat else None


def processes() -> dict[int, Entry]:
    """All of them, by pid. `/proc/PID/task/TID/children` isn't in every kernel, and may miss some."""
    found: dict[int, Entry] = {}
    with os.scandir("/proc") as names:
        for name in names:
            if name.name.isdigit() and (one := entry(int(name.name))):
                found[int(name.name)] = one
    return found


def descendants(found: dict[int, Entry], roots: set[int]) -> set[int]:
    """The children of some processes, and theirs; without the roots."""
    children: dict[int, list[int]] = {}
    for pid, one in found.items():
        children.setdefault(one.parent, []).append(pid)
    below: set[int] = set()
    looking = list(roots)
    while looking:
        for child in children.get(looking.pop(), ()):
            if child not in below and child not in roots:
                below.add(child)
                looking.append(child)
    return below


def marked(found: dict[int, Entry], mark: str) -> set[int]:
    """Those that were started with this value of `MARK`, or were forked by one that was."""
    wanted = f"{MARK}={mark}".encode()
    return {pid for pid in found if wanted in _read(f"/proc/{pid}/environ").split(b"\0")}


def kill(found: dict[int, Entry], pids: set[int]) -> bool:
    """SIGKILL processes as they were found, and no others that have got their pids since.

    Returns:
        Whether any of them was alive.
    """
    for pid in pids:
        try:
            file = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            now = entry(pid)
            if now is not None and now.began == found[pid].began:
                signal.pidfd_send_signal(file, signal.SIGKILL)
        except OSError:  # it has ended meanwhile, or isn't this user's any more
            pass
        finally:
            os.close(file)
    return any(not found[pid].is_dead for pid in pids)


class Watched:
    """A process that is known by more than its number, which the kernel gives away again."""

    def __init__(self, pid: int, parent: int) -> None:
        self.pid = pid
        try:
            self._file = os.pidfd_open(pid)
        except OSError:
            self._file = -1
        one = entry(pid)
        if one is None or one.parent != parent:  # it has ended, and its pid may be another's
            self.close()

    def is_there(self) -> bool:
        """Whether the process itself has that pid still, if only as a zombie."""
        if self._file < 0:
            return False
        try:
            signal.pidfd_send_signal(self._file, 0)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Forget it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Warden:
    """Watches one runner.

    Args:
        socket: the descriptor of its end of the pair.
        mark: the runner's value of `MARK`.
    """

    def __init__(self, socket: int, mark: str) -> None:
        self._socket = socket
        self._mark = mark
        self._until = float("inf")
        self._runner = os.getppid()
        self._server = Watched(0, self._runner)
        self._executors: dict[int, Watched] = {}

    def run(self) -> None:
        """Return when the runner is gone, and so is all that it has started."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            left = self._until - _boot_time()
            if poll.poll(max(0.0, min(left, _LOOK_S)) * 1000):
                message = self._receive()
                if message == b"end":
                    return
                if not message:
                    self._end_all()
                    return
                self._take(message)
            elif left <= 0:
                self._until = float("inf")
                self._tell(" ".join(map(str, ("killed", *self._executors))).encode())
                self._end_executors()

    def _receive(self) -> bytes:
        try:
            return os.read(self._socket, 65536)
        except OSError:  # it has left something unread
            return b""

    def _tell(self, message: bytes) -> None:
        try:  # noqa: SIM105 - contextlib takes long to import
            os.write(self._socket, message)
        except OSError:  # nobody is there any more, which the next read says, too
            pass

    def _take(self, message: bytes) -> None:
        until, server, *executors = message.split()
        self._until = float(until)
        if int(server) != self._server.pid:
            self._server.close()
            self._server = Watched(int(server), self._runner)
        pids = {int(pid) for pid in executors}
        for pid in self._executors.keys() - pids:
            self._executors.pop(pid).close()
        for pid in pids - self._executors.keys():
            self._executors[pid] = Watched(pid, self._server.pid)

    def _end_executors(self) -> None:
        """Kill what stems from the fork server, but not itself: it adopts what others leave behind."""
        keep = {self._server.pid, os.getpid()}
        for with_marks in (False, True):  # to read marks may block for ever on a process that hangs
            ends_at = time.monotonic() + _GIVE_UP_S
            while time.monotonic() < ends_at:
                found = processes()
                if not kill(found, self._family(found, with_marks) - keep):
                    break
                time.sleep(_AGAIN_S)

    def _end_all(self) -> None:
        self._end_executors()
        found = processes()
        server = {self._server.pid} & found.keys() if self._server.is_there() else set[int]()
        kill(found, (server | marked(found, self._mark)) - {os.getpid()})

    def _family(self, found: dict[int, Entry], with_marks: bool) -> set[int]:
        roots: set[int] = set()
        if self._server.is_there():
            roots.add(self._server.pid)
        groups: set[int] = set()
        for pid, executor in self._executors.items():
            if executor.is_there():
                roots.add(pid)
            if executor.is_there() or pid not in found:  # else another one's group has this number now
                groups.add(pid)
        roots |= {pid for pid, one in found.items() if one.group in groups}
        if with_marks:
            roots |= marked(found, self._mark)
        return (roots & found.keys()) | descendants(found, roots)


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main() -> None:
    """Watch over the runner at the other end of the standard input."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the runner, which says when it has ended
    Warden(0, sys.argv[1]).run()


if __name__ == "__main__":
    main()
