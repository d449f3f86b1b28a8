"""The running server as its `postmaster.pid` and the kernel tell it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

SOCKET_NAME: Final = ".s.PGSQL.5432"


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What the lock file in a data folder says; the pid in it may be stale or another process's by now."""

    data: Path
    pid: int
    is_ready: bool

    @classmethod
    def read(cls, data: Path) -> Self | None:
        """The lock file's content; None when there is none, or it is only half written."""
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
            return cls(data, abs(int(lines[0])), len(lines) >= 8 and lines[7].strip() == "ready")
        except (FileNotFoundError, IndexError, ValueError):
            return None

    def is_alive(self) -> bool:
        """Whether that process runs and is this data folder's server: it works in the folder.

        A zombie has no folder, so it counts as gone.
        """
        return _is_postgres_in(self.pid, self.data)

    def send(self, number: int) -> None:
        """Send a signal; a process that has just ended is fine."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def is_used(data: Path) -> bool:
    """Whether any process of Postgres works in the data folder: a server, or what is left of one."""
    processes = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return any(_is_postgres_in(pid, data) for pid in processes)


def forget_stale_locks(data: Path, socket_folder: Path) -> None:
    """Remove lock files that would keep Postgres from starting though no server is there.

    Postgres believes in a lock file whose pid exists, be it another process by now or a zombie that nobody
    reaps. One whose process is gone stays: with it, Postgres checks that nothing of the dead server still
    uses the shared memory. So a file goes only when no process of Postgres works in the data folder.
    """
    for lock in (data / "postmaster.pid", socket_folder / f"{SOCKET_NAME}.lock"):
        pid = _pid_in(lock)
        if pid is not None and (pid == 0 or Path("/proc", str(pid)).exists()) and not is_used(data):
            lock.unlink(missing_ok=True)


def _pid_in(lock: Path) -> int | None:
    """The pid in a lock file: None without the file, 0 for one that a crash left empty."""
    try:
        return abs(int(lock.read_text().partition("\n")[0] or "0"))
    except FileNotFoundError:
        return None
    except ValueError:
        return 0


def _is_postgres_in(pid: int, folder: Path) -> bool:
    process = Path("/proc", str(pid))
    try:
        return (process / "cwd").readlink() == folder and (process / "comm").read_text() == "postgres\n"
    except OSError:
        return False
