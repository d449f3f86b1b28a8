"""Who uses the embedded server: locks of the kernel, which no crash leaves behind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class Holders:
    """The processes that hold one server, and a mutex between them.

    A holder keeps a shared lock on a file; whoever gets that lock exclusively was the last. Starting and
    stopping happen inside `mutex`, and so do all reads and writes of `is_passing`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mutex_path = folder / "postgres.mutex"
        self._holders_path = folder / "postgres.holders"
        self._passing_path = folder / "postgres.passing"
        self._held: int | None = None

    @property
    def is_passing(self) -> bool:
        """Whether the server was started by a visitor, and nobody has held it since who keeps it."""
        return self._passing_path.exists()

    @is_passing.setter
    def is_passing(self, value: bool) -> None:
        if value:
            self._passing_path.touch(mode=0o600)
        else:
            self._passing_path.unlink(missing_ok=True)

    @contextmanager
    def mutex(self) -> Generator[None]:
        """Keep out all other processes that start or stop the server."""
        descriptor = _open(self._mutex_path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def join(self) -> None:
        """Become a holder. Call it inside `mutex`, where nobody has the exclusive lock for longer."""
        if self._held is None:
            self._held = _open(self._holders_path)
            fcntl.flock(self._held, fcntl.LOCK_SH)

    def leave(self) -> bool:
        """Stop being a holder; true when nobody else holds the server. Call it inside `mutex`."""
        if self._held is None:
            return False
        descriptor, self._held = self._held, None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            # Unlocked by hand: a forked child shares the lock, and closing would leave it with the child.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        return True


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
