"""One `up` per home: a lock of the kernel on a file that says who has it and where it serves."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from headrace.errors import SetupError


class HomeLock:
    """The right to run a site in a home; gone with the process, however it ends."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._descriptor: int | None = None

    def take(self, url: str) -> None:
        """Take the lock and leave a note of the address that will be served.

        Raises:
            SetupError: another process has it.
        """
        path = _path(self._home)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            note = _note(self._home)
            raise SetupError(
                f"already running (pid {note.get('pid', 'unknown')}) in {self._home} "
                f"at {note.get('url', 'an unknown address')}: stop it, or set another HEADRACE_HOME"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps({"pid": os.getpid(), "url": url}).encode())
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock up; without effect when it isn't held."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def running_url(home: Path) -> str | None:
    """The address of the site that runs in this home, or None."""
    try:
        descriptor = os.open(_path(home), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _note(home).get("url")
    finally:
        os.close(descriptor)
    return None


def _path(home: Path) -> Path:
    return home / "run" / "up.lock"


def _note(home: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        note: dict[str, Any] = json.loads(_path(home).read_text())
        return note
    return {}
