"""What `make` says on a machine that can't run Headrace: one line, before anything is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `make` reads, in a folder of its own whose path holds a space."""
    folder = tmp_path / "a check out"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / ".ci", folder / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def fake(checkout: Path, name: str, script: str) -> None:
    program = checkout / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment["PATH"] = f"{checkout / 'bin'}:{environment['PATH']}"
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def assert_one_line(ran: subprocess.CompletedProcess[str], *words: str) -> None:
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert [word for word in words if word not in ran.stderr] == []


@pytest.mark.parametrize("target", ["up", "demo", "test", "lint"])
def test_a_wrong_python_is_named(checkout: Path, target: str) -> None:
    fake(checkout, "python3", "echo 3.10")
    assert_one_line(make(checkout, target), "3.11, 3.12 or 3.13", "'python3' is 3.10", "PYTHON=")
    assert not (checkout / ".venv").exists()


def test_a_python_that_is_not_there(checkout: Path) -> None:
    assert_one_line(make(checkout, "setup", "PYTHON=python3.99"), "no 'python3.99' here")


def test_a_python_that_does_not_run(checkout: Path) -> None:
    fake(checkout, "python3", "exit 127")
    assert_one_line(make(checkout, "setup"), "'python3' doesn't run")


def test_a_python_without_venv(checkout: Path) -> None:
    fake(checkout, "python3", f'case "$2" in *ensurepip*) exit 1 ;; esac\nexec {sys.executable} "$@"')
    assert_one_line(make(checkout, "setup"), "without the venv module", "python3-venv")


def test_a_full_disk(checkout: Path) -> None:
    fake(checkout, "python3", f'exec {sys.executable} "$@"')
    fake(checkout, "df", "echo 'Filesystem 1024-blocks Used Available'; echo '/dev/x 9 9 512000'")
    assert_one_line(make(checkout, "setup"), "takes 3 GB of disk", "512 MB are free")


@pytest.mark.slow
def test_what_stopped_pip_is_said_in_one_line(checkout: Path) -> None:
    fake(checkout, "python3", f'exec {sys.executable} "$@"')
    install = checkout / ".ci" / "install.py"
    install.write_text(install.read_text().replace('"torch==2.13.0"', '"--no-index", "no-such-package"'))
    ran = make(checkout, "setup")
    assert ran.returncode == 2
    assert "1/4 torch: Could not find a version that satisfies the requirement no-such-package" in ran.stderr
    assert "No matching distribution" in (checkout / ".venv" / "install.log").read_text()
    assert not (checkout / ".venv" / ".ready").exists()


def test_a_second_run_installs_nothing(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / ".ready").touch()
    ran = make(checkout, "setup", "PYTHON=python3.99")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_help_names_every_command(checkout: Path) -> None:
    shown = make(checkout).stdout
    for name in ("up", "demo", "test", "test-full", "lint", "format", "clean"):
        assert f"make {name} " in shown
