"""One process of a site: a session of its own, a log file, an end in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from headrace.process import PARENT_VARIABLE

_LOG_BYTES: Final = 2**24


class Child:
    """A program that can be started again; all it says goes to its log.

    Its session keeps Ctrl-C away from it, and makes it and its children one group that can be killed.

    Args:
        name: what it is called in messages.
        command: the program and its arguments.
        environment: what it finds in its environment.
        log: where all that it says is added.
        waits: whether the program waits for a line on its standard input, which `start` sends: its `run_id`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        waits: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        self.environment = {**environment, PARENT_VARIABLE: str(os.getpid())}
        self.run_id = ""
        """A UUID, new at each start."""
        self._command = command
        self._waits = waits
        self._process: asyncio.subprocess.Process | None = None
        self._swept: asyncio.subprocess.Process | None = None
        self._said_from = 0

    @property
    def is_running(self) -> bool:
        """Whether it has been started and hasn't ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it; call this in the main thread, whose end the child may watch."""
        await self.prepare()
        self.go()

    async def prepare(self) -> None:
        """Start it, but for the line that it waits for."""
        self.run_id = str(uuid.uuid4())
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as log:
            self._said_from = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE if self._waits else asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    def go(self) -> None:
        """Send the line, if it waits for one; what it says counts from here."""
        if self._process is not None and self._process.stdin is not None:
            self._said_from = self.log.stat().st_size
            self._process.stdin.write(f"{self.run_id}\n".encode())
            self._process.stdin.close()

    async def wait(self) -> int:
        """Wait for its end, and kill what it leaves behind in its group.

        Returns:
            The exit code; negative for a signal.
        """
        process = self._process
        if process is None:
            return 0
        code = await process.wait()
        if self._swept is not process:  # once, while the group's number can't be anybody else's yet
            self._swept = process
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        return code

    async def stop(self, patience: float) -> None:
        """Ask it to end, and kill it when it hasn't after `patience` seconds."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.wait(), patience)
        except TimeoutError:
            self.kill()
            await self.wait()

    def kill(self) -> None:
        """End it and its children at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def last_lines(self, count: int) -> list[str]:
        """The last lines it said since its latest start."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._said_from, size - 2**16))
            return log.read().decode(errors="replace").splitlines()[-count:]

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def describe_end(code: int) -> str:
    """An exit code in words."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
