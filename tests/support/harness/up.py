"""A developer's folder, and `headrace up` in it as its user sees it: real processes, real signals."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.prepared import put_data
from headrace.client import CallRefused, Client, Unreachable
from headrace.site.address import free_port

FUNCTIONS = """
import os
from headrace import function
from pydantic import BaseModel

class Text(BaseModel):
    text: str

class Answer(BaseModel):
    text: str
    pid: int

@function(examples=[{"text": "it's"}])
def echo(input: Text) -> Answer:
    return Answer(text=input.text, pid=os.getppid())
"""


LAST_LINE = "Ctrl-C stops everything."
SAYS_S = 60.0
"""How long a line is waited for."""


class Folder:
    """A developer's folder with one module of functions, and the `headrace` commands run in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = path / ".headrace"
        self.port = free_port("127.0.0.1")
        (path / "mine.py").write_text(FUNCTIONS)
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.environment = {**kept, "HEADRACE_FUNCTIONS": "mine", "HEADRACE_PORT": str(self.port)}

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace", *arguments],
            cwd=self.path,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    @contextlib.contextmanager
    def up(self, *options: str, command: str = "up", anew: bool = False, **environment: str) -> Iterator[Up]:
        """A start with the data of an earlier one where the home is new, unless it is to make them itself."""
        if not (anew or self.home.exists()):
            put_data(self.home)
        with subprocess.Popen(
            [sys.executable, "-m", "headrace", command, *options],
            cwd=self.path,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield Up(process)
            finally:
                if process.poll() is None:
                    process.terminate()
                assert process.stdout is not None
                process.stdout.read()

    def processes(self, word: str = "") -> list[int]:
        """Processes of this home whose command line has that word; zombies have none."""
        return [pid for pid, line in self._command_lines() if line and word in line]

    def _command_lines(self) -> Iterator[tuple[int, str]]:
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit():
                    environment = (process / "environ").read_bytes().split(b"\0")
                    ours = f"HEADRACE_HOME={self.home}".encode() in environment
                    if ours or (process / "cwd").readlink() == self.home / "postgres":
                        yield (
                            int(process.name),
                            (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(),
                        )


class Up:
    """A running `headrace up`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self.said = ""
        assert process.stdout is not None
        self._output = process.stdout.fileno()  # read past its own buffer, which nothing can wait for
        self._unread = b""

    def until(self, text: str, *, within: float = SAYS_S) -> str:
        """Read on to the line with `text`, and return that line.

        Raises:
            AssertionError: it isn't said within so many seconds, or the process ends before.
        """
        deadline = time.monotonic() + within
        while True:
            while b"\n" in self._unread:
                line, _, self._unread = self._unread.partition(b"\n")
                self.said += line.decode() + "\n"
                if text in line.decode():
                    return line.decode() + "\n"
            if not select.select([self._output], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"it didn't say {text!r} within {within:g} s, but:\n{self.said}")
            if not (more := os.read(self._output, 2**16)):
                raise AssertionError(
                    f"it ended with {self.process.wait()} before it said {text!r}:\n{self.said}"
                )
            self._unread += more

    def ready(self) -> None:
        self.until(LAST_LINE)

    @property
    def key(self) -> str:
        found = re.search(r"^  key +(hr_\S{43}) ", self.said, re.MULTILINE)
        assert found, self.said
        return found[1]

    def stop(self, number: int = signal.SIGINT) -> int:
        """Signal it as a terminal does, all of its process group; its exit code."""
        assert self.process.stdout is not None
        os.killpg(self.pid, number)
        self.said += self._unread.decode() + self.process.stdout.read()
        self._unread = b""
        return self.process.wait()


@contextlib.contextmanager
def developers_folder() -> Iterator[Folder]:
    # Short for sockets, and open to the user that Postgres runs as under root.
    path = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp")).resolve()
    made = Folder(path)
    try:
        yield made
        assert made.processes() == []
    finally:
        for pid in made.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(path, ignore_errors=True)


def echo(folder: Folder, key: str, text: str = "x") -> Any:
    with Client(f"http://127.0.0.1:{folder.port}", key) as client:
        return client.call("echo", {"text": text})


def session_leaders(folder: Folder, word: str) -> list[int]:
    return [pid for pid in folder.processes(word) if os.getsid(pid) == pid]


def postmaster_pid(folder: Folder) -> int:
    return int((folder.home / "postgres" / "postmaster.pid").read_text().split()[0])


def wait_until_served(folder: Folder, key: str) -> None:
    """Call until it is answered; the test's own timeout ends it."""
    while True:
        try:
            assert echo(folder, key)["text"] == "x"
            return
        except (CallRefused, Unreachable):
            time.sleep(0.1)


def wait_for_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 30)[0]
        os.close(descriptor)
