"""`headrace up` and `headrace demo` as their users see them: real processes, real signals, one home each."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.client import CallRefused, Client, Unreachable
from headrace.embedded import EmbeddedPostgres
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
    def up(self, **environment: str) -> Iterator[Up]:
        with subprocess.Popen(
            [sys.executable, "-m", "headrace", "up"],
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

    def until(self, text: str) -> str:
        """Read on to the line with `text`, and return that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if text in line:
                return line
        raise AssertionError(f"it ended with {self.process.wait()} before it said {text!r}:\n{self.said}")

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
        self.said += self.process.stdout.read()
        return self.process.wait()


@pytest.fixture
def folder() -> Iterator[Folder]:
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


def test_up_serves_until_ctrl_c_and_keeps_the_data(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        assert f"Headrace serves at http://127.0.0.1:{folder.port} " in up.said
        assert "functions  echo\n" in up.said
        assert "logs       .headrace/logs\n" in up.said
        assert stat.S_IMODE((folder.home / "key").stat().st_mode) == 0o600
        assert (folder.home / "key").read_text() == up.key + "\n"
        assert (folder.home / ".gitignore").read_text() == "*\n"
        assert len(folder.processes("gpu_runner")) >= 1
        first_key = up.key
        assert echo(folder, first_key, "hello")["text"] == "hello"
        assert {path.name for path in (folder.home / "logs").iterdir()} >= {"gateway.log", "runner-1.log"}
        assert up.stop() == 0
        assert "Traceback" not in up.said
    assert folder.processes() == []

    with folder.up() as up:
        up.ready()
        assert "applied" not in up.said
        assert up.key == first_key
        assert echo(folder, first_key)["text"] == "x"
        assert up.stop(signal.SIGTERM) == 0


def test_the_line_to_paste_works(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        command = up.said.partition("Try it:\n")[2].splitlines()[0].strip()
        assert command.startswith(f"curl -s http://127.0.0.1:{folder.port}/fn/echo ")
        words = shlex.split(command)
        assert words[-2:] == ["-d", '{"text": "it\'s"}']
        assert words[3:-2] == [
            "-H",
            "Authorization: Bearer $(cat .headrace/key)",
            "-H",
            "Content-Type: application/json",
        ]
        if shutil.which("curl"):
            answer = subprocess.run(
                command, shell=True, cwd=folder.path, capture_output=True, text=True, check=True
            )
            assert json.loads(answer.stdout)["text"] == "it's"


def test_other_commands_work_beside_it(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        second = folder.run("up")
        assert second.returncode == 1
        assert second.stderr.endswith(
            f"headrace: already running (pid {up.pid}) in {folder.home} "
            f"at http://127.0.0.1:{folder.port}: stop it, or set another HEADRACE_HOME\n"
        )
        assert "Traceback" not in second.stderr

        called = folder.run("call", "echo", '{"text": "from the shell"}', HEADRACE_PORT="1")
        assert (called.returncode, called.stderr) == (0, "")
        assert json.loads(called.stdout)["text"] == "from the shell"

        made = folder.run("keys", "create", "--owner", "other")
        assert made.returncode == 0, made.stderr
        assert echo(folder, made.stdout.strip())["text"] == "x"
        assert echo(folder, up.key)["text"] == "x"


def test_a_taken_port_is_one_clear_line(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", folder.port)):
        done = folder.run("up")

    assert done.returncode == 1
    assert done.stderr == (
        f"headrace: port {folder.port} on 127.0.0.1 is taken: stop what listens there, or set HEADRACE_PORT\n"
    )
    assert not folder.home.exists()


def test_a_module_that_does_not_import_is_shown_with_its_log(folder: Folder) -> None:
    (folder.path / "mine.py").write_text("import nothing_of_that_name\n")
    done = folder.run("up")

    assert done.returncode == 1
    assert "runner-1 | " in done.stderr
    assert "nothing_of_that_name" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("headrace: runner-1 ended at its start (exit code 1)")
    assert "Traceback" not in done.stderr.replace("runner-1 | Traceback", "")


@pytest.mark.parametrize("moment", ["starting Postgres", "starting the gateway", "loading models"])
def test_ctrl_c_during_the_start_leaves_nothing_behind(folder: Folder, moment: str) -> None:
    with folder.up() as up:
        up.until(moment)
        began = time.monotonic()
        assert up.stop() == 0
        assert time.monotonic() - began < 5
        assert up.said.endswith("stopped; data stay in .headrace\n")
        assert "Traceback" not in up.said
        assert folder.processes() == []


@pytest.mark.parametrize("moment", ["loading models", LAST_LINE])
def test_a_closed_terminal_stops_everything_in_order(folder: Folder, moment: str) -> None:
    ours, theirs = pty.openpty()
    # The first terminal that the leader of a new session opens becomes the one that controls it.
    script = 'exec "$@" <"$TERMINAL" >"$TERMINAL" 2>&1'
    with subprocess.Popen(
        ["sh", "-c", script, "sh", sys.executable, "-m", "headrace", "up"],
        cwd=folder.path,
        env=folder.environment | {"TERMINAL": os.ttyname(theirs), "TERM": "xterm", "COLUMNS": "200"},
        start_new_session=True,
    ) as process:
        try:
            said = b""
            while moment.encode() not in said:
                said += os.read(ours, 2**16)
            os.close(theirs)
            os.close(ours)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert folder.processes() == []
    assert not (folder.home / "postgres" / "postmaster.pid").exists()
    if moment == LAST_LINE:
        assert "stopping: taking no new calls" in (folder.home / "logs" / "runner-1.log").read_text()


BROKEN = """
from headrace import function, model, uses
from pydantic import BaseModel

class Text(BaseModel):
    text: str

@model()
def gone(device):
    raise OSError("no file\\nof that name")

@function(examples=[{"text": ""}])
def broken(input: Text, *, it: object = uses(gone)) -> Text:
    return {}
"""


def test_a_model_that_can_not_be_loaded_is_said_at_once_and_the_rest_is_served(folder: Folder) -> None:
    (folder.path / "mine.py").write_text(FUNCTIONS + BROKEN)
    with folder.up() as up:
        up.ready()
        assert "functions  echo\n" in up.said
        assert (
            "degraded   broken: model mine:gone could not be loaded: OSError: no file of that name" in up.said
        )
        assert "(log: .headrace/logs/runner-1.log)" in up.said
        assert "/fn/echo " in up.said
        assert echo(folder, up.key)["text"] == "x"

    (folder.path / "mine.py").write_text(BROKEN)
    with folder.up() as up:
        up.ready()
        assert f"Headrace answers at http://127.0.0.1:{folder.port}, but no function can be served" in up.said
        assert "functions  none\n" in up.said
        assert "degraded   broken: " in up.said
        assert "still not ready" not in up.said
        assert "curl" not in up.said
        assert up.key == (folder.home / "key").read_text().strip()
        assert up.stop() == 0


def test_a_killed_up_takes_gateway_and_runner_with_it_and_the_next_one_takes_over(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        key = up.key
        children = [*folder.processes("gateway"), *folder.processes("gpu_runner")]
        watched = [os.pidfd_open(pid) for pid in children]
        up.process.kill()
        wait_for_all(watched)
    assert [*folder.processes("gateway"), *folder.processes("gpu_runner")] == []
    assert EmbeddedPostgres(folder.home).is_running()

    with folder.up() as up:
        up.ready()
        assert up.key == key
        assert echo(folder, key)["text"] == "x"
        assert up.stop() == 0
    assert not EmbeddedPostgres(folder.home).is_running()


def wait_for_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 30)[0]
        os.close(descriptor)


def test_a_lost_process_is_started_again(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        (runner,) = session_leaders(folder, "gpu_runner")
        os.kill(runner, signal.SIGKILL)
        assert "runner-1 ended (killed by SIGKILL)" in up.until("runner-1 ended")
        (gateway,) = session_leaders(folder, "headrace gateway")
        os.kill(gateway, signal.SIGKILL)
        assert "gateway ended (killed by SIGKILL)" in up.until("gateway ended")
        os.kill(postmaster_pid(folder), signal.SIGKILL)
        up.until("Postgres ended")
        wait_until_served(folder, up.key)
        assert up.stop() == 0


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


def test_a_second_ctrl_c_kills(folder: Folder) -> None:
    with folder.up() as up:
        up.ready()
        for pid in [*session_leaders(folder, "gpu_runner"), *session_leaders(folder, "headrace gateway")]:
            os.kill(pid, signal.SIGSTOP)  # such a process ends neither in order nor soon
        os.killpg(up.pid, signal.SIGINT)
        up.until("stopping")
        assert up.stop() == 0


def test_a_key_that_the_database_does_not_know_is_replaced(folder: Folder) -> None:
    folder.home.mkdir()
    (folder.home / "key").write_text("hr_" + "x" * 43 + "\n")
    with folder.up() as up:
        up.ready()
        assert up.key != "hr_" + "x" * 43
        assert f"the key in {folder.home / 'key'} was no longer valid" in up.said
        assert echo(folder, up.key)["text"] == "x"


def test_several_runners(folder: Folder) -> None:
    with folder.up(HEADRACE_RUNNERS="2") as up:
        up.ready()
        assert {path.name for path in (folder.home / "run").glob("*.sock")} == {
            "runner-1.sock",
            "runner-2.sock",
        }
        assert len(session_leaders(folder, "gpu_runner")) == 2


@pytest.mark.real_models
def test_the_demo_shows_real_vectors_and_leaves_nothing_running(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", folder.port)):  # taken: it finds another
        done = folder.run("demo", HEADRACE_FUNCTIONS="functions")

    assert done.returncode == 0, done.stderr
    assert "is a vector of 384 numbers:" in done.stdout
    values = re.search(r"numbers:\n  ((?:-?0\.\d{4}, ){8})\.\.\.", done.stdout)
    assert values, done.stdout
    rows = re.findall(r"│ (\d) .*?│ +(-?[\d.]+) │ +(-?[\d.]+) │ +(-?[\d.]+) │ +(-?[\d.]+) │", done.stdout)
    cosines = {int(row[0]): [float(cell) for cell in row[1:]] for row in rows}
    assert [cosines[number][number - 1] for number in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert cosines[1][1] > 0.3 > cosines[1][2]
    assert cosines[3][3] > 0.3 > cosines[2][3]
    assert "Everything is stopped." in done.stdout
