"""The stacks of an executor's threads, written by its signal handler in C, whatever Python is doing."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from gpu_runner.frames import STACKS

_PATIENCE_S = 0.5
_LOOK_S = 0.02
_MOST_BYTES = 2**20
_NAME = f"/memfd:{STACKS} (deleted)"


class StackFile:
    """The memory file into which an executor writes them.

    It is opened once, before a function can put another one in its place, and nothing here ever blocks.

    Args:
        pid: the executor's.
        descriptor: the file's number in the executor.

    Raises:
        OSError: the executor is gone, or that is another file.
    """

    def __init__(self, pid: int, descriptor: int) -> None:
        path = Path(f"/proc/{pid}/fd/{descriptor}")
        _check(str(path.readlink()) == _NAME, path)  # to open another one may do anything
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check(stat.S_ISREG(os.fstat(self._file).st_mode), path)
            _check(str(Path(f"/proc/self/fd/{self._file}").readlink()) == _NAME, path)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Forget the file; what is asked of it then raises `OSError`."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def clear(self) -> None:
        """Forget what was written before.

        Raises:
            OSError: the executor is gone, or a function has sealed the file.
        """
        os.ftruncate(self._file, 0)

    async def settled(self) -> str:
        """What has been written since, once nothing more is added; empty when nothing came within 0.5 s.

        Returns:
            A megabyte at most.

        Raises:
            OSError: the executor is gone.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _PATIENCE_S
        before = b""
        while loop.time() < ends_at:
            await asyncio.sleep(_LOOK_S)
            # A writer that doesn't append leaves a gap.
            now = os.pread(self._file, _MOST_BYTES, 0).lstrip(b"\0")
            if now and now == before:
                break
            before = now
        return before.decode(errors="replace")


def _check(is_so: bool, path: Path) -> None:
    if not is_so:
        raise FileNotFoundError(f"{path} is another file")
