"""An environment that holds what one wheel declares, and nothing else of the environment of the tests."""

import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def make(folder: Path, wheel: Path) -> Path:
    """Install the wheel and its declared dependencies into a new environment; returns its Python.

    Dependencies are linked, not downloaded: the tests' versions, in no time, and only what is declared.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    into = next(folder.glob("lib/python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)
    installed = next(into.glob("headrace-*.dist-info"))
    for needed in _closure(Distribution.at(installed)):
        for name in {file.parts[0] for file in needed.files or ()} - {"..", "__pycache__"}:
            source = Path(str(needed.locate_file(name)))
            if source.exists() and not (into / name).exists():
                (into / name).symlink_to(source)
    return python


def _closure(root: Distribution) -> Iterator[Distribution]:
    waiting = [(root, frozenset[str]())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        holder, extras = waiting.pop()
        for text in holder.requires or ():
            requirement = Requirement(text)
            needed = (canonicalize_name(requirement.name), frozenset(requirement.extras))
            applies = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
            )
            if applies and needed not in seen:
                seen.add(needed)
                found = distribution(requirement.name)
                waiting.append((found, needed[1]))
                yield found
