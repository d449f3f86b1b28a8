"""`headrace up` and `headrace demo` as their users see them, one home each."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator

import pytest
from harness.up import FUNCTIONS, Folder, Up, developers_folder, echo, session_leaders


def test_up_serves_until_ctrl_c_and_keeps_the_data(folder: Folder) -> None:
    with folder.up(anew=True) as up:
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


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Folder, Up]]:
    with developers_folder() as folder, folder.up() as up:
        up.ready()
        yield folder, up
        assert up.stop() == 0


def test_the_line_to_paste_works(running: tuple[Folder, Up]) -> None:
    folder, up = running
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


def test_other_commands_work_beside_it(running: tuple[Folder, Up]) -> None:
    folder, up = running
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
        assert "still starting" not in up.said
        assert "curl" not in up.said
        assert up.key == (folder.home / "key").read_text().strip()
        assert up.stop() == 0


def test_a_key_that_the_database_does_not_know_is_replaced(folder: Folder) -> None:
    folder.home.mkdir()
    (folder.home / "key").write_text("hr_" + "x" * 43 + "\n")
    with folder.up() as up:
        up.ready()
        assert up.key != "hr_" + "x" * 43
        assert f"the key in {folder.home / 'key'} was no longer valid" in up.said
        assert echo(folder, up.key)["text"] == "x"


@pytest.mark.slow
def test_several_runners(folder: Folder) -> None:
    with folder.up(HEADRACE_RUNNERS="2") as up:
        up.ready()
        assert {path.name for path in (folder.home / "run").glob("*.sock")} == {
            "runner-1.sock",
            "runner-2.sock",
        }
        assert len(session_leaders(folder, "-m gpu_runner ")) == 2


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
