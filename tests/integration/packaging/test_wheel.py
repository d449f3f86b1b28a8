"""What is released: the sdist, the wheel made from it, and a site that runs from that wheel alone."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import urllib.request
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import lonely

ROOT = Path(__file__).resolve().parents[3]

OURS = ("HEADRACE_", "PYTHON")
OWN_FUNCTION = '''
from pydantic import BaseModel
from headrace import function


class Words(BaseModel):
    words: list[str]


@function(examples=[{"words": ["a"]}])
def count(input: Words) -> int:
    """How many words there are."""
    return len(input.words)
'''


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """A folder that Postgres' user may enter, with room for socket paths of at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    build("--outdir", str(folder))
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def build(*arguments: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *arguments, str(ROOT)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def python(short_folder: Path, built: tuple[Path, Path]) -> Path:
    """The Python of an environment with the wheel and its declared dependencies alone."""
    return lonely.make(short_folder / "env", built[1])


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def source_files(folder: str) -> set[str]:
    files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_packages_with_their_sql_and_templates(built: tuple[Path, Path]) -> None:
    names = contents(built[1])
    code = {name.removeprefix("platform/") for name in source_files("platform")}
    data = {f"headrace/{name}" for folder in ("sql", "templates") for name in source_files(folder)}
    wanted = code | data | source_files("gpu_runner") | source_files("functions")
    assert data
    assert {name for name in names if ".dist-info/" not in name} == wanted


def test_the_wheel_holds_the_licence_and_the_command(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        texts = {name.split(".dist-info/")[1]: name for name in archive.namelist() if ".dist-info/" in name}
        assert archive.read(texts["licenses/LICENSE"]).strip().startswith(b"Apache License")
        assert b"headrace = headrace.cli:main" in archive.read(texts["entry_points.txt"])


def test_the_wheel_is_the_same_from_the_checkout(built: tuple[Path, Path], tmp_path: Path) -> None:
    build("--wheel", "--outdir", str(tmp_path))
    assert contents(next(tmp_path.glob("*.whl"))) == contents(built[1])


def test_the_sdist_holds_the_source_and_no_tests(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert tops == {
        "platform", "gpu_runner", "functions",
        "README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "PKG-INFO", ".gitignore",
    }  # fmt: skip


def test_the_installed_package_is_the_wheel_s(python: Path, short_folder: Path) -> None:
    script = "import headrace, gpu_runner, functions; print(headrace.__file__, headrace.__version__)"
    command = [str(python), "-P", "-c", script]
    ran = subprocess.run(command, cwd=short_folder, capture_output=True, text=True, check=True)
    file, version = ran.stdout.split()
    assert Path(file).is_relative_to(short_folder / "env")
    assert version == "0.1.0"


def test_a_site_serves_from_the_wheel_alone(python: Path, short_folder: Path) -> None:
    project = short_folder / "project"
    project.mkdir()
    (project / "own_functions.py").write_text(OWN_FUNCTION)
    with site(python, project) as url:
        key = (project / ".headrace" / "key").read_text().strip()
        request = urllib.request.Request(
            f"{url}/fn/count",
            data=json.dumps({"words": ["one", "two", "three"]}).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert (answer.status, json.load(answer)) == (200, 3)


@contextmanager
def site(python: Path, project: Path) -> Generator[str]:
    """`headrace up` in the project's folder, its address once it serves; Ctrl-C must end it well."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    environment |= {"HEADRACE_FUNCTIONS": "own_functions", "HEADRACE_PORT": str(free_port())}
    command = [str(python.parent / "headrace"), "up"]
    with subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as up:
        assert up.stdout is not None
        watch = threading.Timer(60, up.kill)
        watch.start()
        said: list[str] = []
        try:
            for line in up.stdout:
                said.append(line)
                if line.startswith("Headrace serves at "):
                    yield line.split()[3]
                    break
            else:
                logs = (path.read_text() for path in (project / ".headrace" / "logs").glob("*.log"))
                pytest.fail("".join([*said, *logs]))
            up.send_signal(signal.SIGINT)
            said.append(up.stdout.read())
            assert up.wait() in {0, 130}, "".join(said)
        finally:
            watch.cancel()
            up.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
