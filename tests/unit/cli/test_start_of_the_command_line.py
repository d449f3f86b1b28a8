from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import _check_python
from headrace.errors import SetupError

COMMANDS = [
    "up",
    "gateway",
    "runner",
    "migrate",
    "functions",
    "owners",
    "keys",
    "call",
    "config",
    "version",
    "demo",
]
HEAVY = ("pydantic", "psycopg", "litestar", "httpx2", "torch", "asyncio", "uvicorn", "procrastinate")


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_names_every_command_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, headrace.cli\n"
        "sys.argv = ['headrace', '--help']\n"
        "try:\n    headrace.cli.main()\n"
        f"finally:\n    print('LOADED', [m for m in {HEAVY!r} if m in sys.modules])\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    for name in (
        "up",
        "gateway",
        "runner",
        "migrate",
        "functions",
        "owners",
        "keys",
        "call",
        "config",
        "version",
        "demo",
    ):
        assert f" {name} " in done.stdout
    assert "LOADED []" in done.stdout
    # CPU time, which other work on the machine hardly changes; twice the target of 0.3 s.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.6


@pytest.mark.parametrize(
    "command", ["up", "gateway", "runner", "migrate", "functions", "owners", "keys", "call", "demo"]
)
def test_every_command_explains_itself(tmp_path: Path, command: str) -> None:
    done = run(command, "--help", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert f"headrace {command}" in done.stdout


def test_an_expected_failure_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = run("config", cwd=tmp_path, HEADRACE_PORT="http")

    assert done.returncode == 1
    assert done.stderr == "headrace: HEADRACE_PORT=http: allowed is a whole number from 1 to 65535\n"


def test_debugging_shows_where_it_came_from(tmp_path: Path) -> None:
    done = run("config", cwd=tmp_path, HEADRACE_PORT="http", HEADRACE_DEBUG="1")

    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], ["up", "--prot", "1"], ["call"]])
def test_wrong_usage_is_exit_code_2(tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments, cwd=tmp_path)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_config_masks_and_says_where_values_come_from(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("HEADRACE_PORT=9000\n")
    done = run("config", cwd=tmp_path, HEADRACE_DATABASE_URL="postgresql://a:hunter2@h/d", HEADRACE_HSOT="x")

    assert done.returncode == 0
    assert "hunter2" not in done.stdout + done.stderr
    lines = {line.partition("=")[0]: line for line in done.stdout.splitlines()}
    assert "HEADRACE_PORT=9000 " in lines["HEADRACE_PORT"]
    assert "# .env: " in lines["HEADRACE_PORT"]
    assert "postgresql://a:***@h/d " in lines["HEADRACE_DATABASE_URL"]
    assert "# environment: " in lines["HEADRACE_DATABASE_URL"]
    assert (
        done.stderr == "headrace: HEADRACE_HSOT is no setting and is ignored; did you mean HEADRACE_HOST?\n"
    )


def test_version_does_not_import_torch(tmp_path: Path) -> None:
    done = run("version", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")

    assert done.stdout.splitlines()[0].startswith("headrace ")
    assert any(line.startswith("torch ") for line in done.stdout.splitlines())
    assert "| torch" not in done.stderr.replace("  ", "")


def test_the_option_says_the_same_version(tmp_path: Path) -> None:
    done = run("--version", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == run("version", cwd=tmp_path).stdout.splitlines()[:1]


@pytest.mark.parametrize(
    "command",
    [
        ["keys", "list"],
        ["keys", "create"],
        ["functions"],
        ["functions", "retire", "echo"],
        ["status"],
        ["jobs", "list"],
        ["migrate", "--check"],
        ["gateway"],
        ["call", "echo"],
    ],
)
def test_a_folder_without_a_home_gets_none(tmp_path: Path, command: list[str]) -> None:
    done = run(*command, cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr.startswith(
        f"headrace: there is no Headrace home in {tmp_path / '.headrace'}: "
        "run this in the folder of `headrace up`, or set HEADRACE_HOME (or HEADRACE_"
    )
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_module_is_named(tmp_path: Path) -> None:
    done = run("config", cwd=tmp_path, HEADRACE_FUNCTIONS="functions, shop.py")

    assert done.stderr == (
        "headrace: HEADRACE_FUNCTIONS=functions, shop.py: these are module names, leave out .py\n"
    )


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_a_wrong_python_is_one_clear_line(version: tuple[int, int]) -> None:
    with pytest.raises(
        SetupError, match=rf"^Python 3\.{version[1]} isn't supported: .* 3\.11, 3\.12 or 3\.13$"
    ):
        _check_python(version)
