"""Folders that are made once, whole or not at all, whoever else makes them or is killed meanwhile."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

log = logging.getLogger(__name__)

CACHE_SETTING: Final = "HEADRACE_MODEL_CACHE"
"""The environment variable that names the cache; default: `models` in the folder of `HEADRACE_HOME`."""

CONTENTS: Final = "contents.json"
"""What a folder should hold: `files`, by name their `bytes` and `sha256`, and `source`, where it is from."""

# Endings of what is beside a model's folder: unfinished and made anew, unfinished and gone on with, its lock.
_DRAFT, _PART, _LOCK = ".draft", ".part", ".lock"
_FORMAT: Final = 2
_SMALL: Final = 2**24  # of larger files only the length is compared at each load: reading all takes too long
_KEPT_PARTS_S: Final = 7 * 86400.0

Tell = Callable[[str], None]
"""Takes how far it is: a short text, such as `45%`."""


def cache_folder(home: Path | None = None) -> Path:
    """Where models are kept.

    Args:
        home: the folder of `HEADRACE_HOME`, where it is known better than by the environment.
    """
    configured = os.environ.get(CACHE_SETTING)
    if configured:
        return Path(configured).expanduser()
    return (home or Path(os.environ.get("HEADRACE_HOME") or ".headrace").expanduser()).absolute() / "models"


# ---------------------------------------------------------------------- what is in a folder


def is_whole(folder: Path) -> bool:
    """Whether all is there that was put there, as far as lengths tell, and hashes of small files."""
    written = _written(folder)
    return written is not None and not any(_differences(folder, written["files"], up_to=_SMALL))


def problems(folder: Path) -> list[str]:
    """What is wrong in a folder, by the hashes of all its files: a sentence for each."""
    written = _written(folder)
    if written is None:
        return [f"{CONTENTS} is missing or damaged"]
    return list(_differences(folder, written["files"], up_to=None))


def _written(folder: Path) -> dict[str, Any] | None:
    try:
        written: Any = json.loads((folder / CONTENTS).read_text())
        if written["format"] != _FORMAT:
            return None
        is_known = all({"bytes", "sha256"} <= said.keys() for said in written["files"].values())
        return written if is_known else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _differences(folder: Path, files: dict[str, dict[str, Any]], up_to: int | None) -> Generator[str]:
    found = {name: folder / name for name in _names(folder)}
    for name, said in files.items():
        file = found.pop(name, None)
        try:
            if file is None:
                yield f"{name} is missing"
            elif (size := file.stat().st_size) != said["bytes"]:
                yield f"{name} has {size} bytes instead of {said['bytes']}"
            elif (up_to is None or size <= up_to) and sha256(file) != said["sha256"]:
                yield f"{name} has changed: its SHA-256 isn't what it was"
        except FileNotFoundError:  # another process replaces the folder
            yield f"{name} is missing"
    for name in found:
        yield f"{name} doesn't belong there"


def _names(folder: Path) -> list[str]:
    try:
        files = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*")) if file.is_file()]
    except FileNotFoundError:  # another process replaces the folder
        return []
    return [name for name in files if name != CONTENTS]


def sha256(file: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


# ---------------------------------------------------------------------- how a folder is made


def make(
    target: Path,
    fill: Callable[[Path, Tell], None],
    *,
    source: str,
    is_good: Callable[[Path], bool] = is_whole,
    goes_on: bool = False,
) -> Path:
    """Make the folder unless it is there; other processes that want it wait meanwhile.

    Args:
        target: the folder, in the cache.
        fill: puts the files into the folder that it gets, and may tell how far it is.
        source: where the files are from, for people.
        is_good: whether a folder that is there can stay.
        goes_on: `fill` goes on with what a process that was killed has left; otherwise that is removed.

    Raises:
        OSError: the cache can't be written.
        Exception: whatever `fill` raises; with `goes_on` what it has done so far stays.
    """
    if is_good(target):
        return target
    _make_cache(target.parent)
    with _alone(target) as tell:
        if not is_good(target):
            _sweep(target.parent, but=target)
            _make(target, fill, tell, source=source, goes_on=goes_on)
    return target


def _make(
    target: Path, fill: Callable[[Path, Tell], None], tell: Tell, *, source: str, goes_on: bool
) -> None:
    draft = target.with_name(target.name + (_PART if goes_on else _DRAFT))
    if draft.exists() and not goes_on:
        log.warning("%s is incomplete, and is made again", draft)
        shutil.rmtree(draft)
    draft.mkdir(exist_ok=True)
    try:
        fill(draft, tell)
        contents = {
            "format": _FORMAT,
            "source": source,
            "files": {
                name: {"bytes": (draft / name).stat().st_size, "sha256": sha256(draft / name)}
                for name in _names(draft)
            },
        }
        (draft / CONTENTS).write_text(json.dumps(contents, indent=1))
        _reach_the_disk(draft)
    except BaseException:
        if not goes_on:
            shutil.rmtree(draft, ignore_errors=True)
        raise
    if target.exists():
        log.warning("%s is incomplete or damaged, and is replaced", target)
        shutil.rmtree(target)
    draft.rename(target)


def _reach_the_disk(folder: Path) -> None:
    """So that the name isn't there before the files are, whatever happens to the machine."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _make_cache(cache: Path) -> None:
    """Make the cache, and a home around it as `headrace up` would: only its user may read there."""
    home = cache.parent
    if not home.exists() and CACHE_SETTING not in os.environ:
        home.parent.mkdir(parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        (home / ".gitignore").write_text("*\n")
    cache.mkdir(parents=True, exist_ok=True)


@contextmanager
def _alone(target: Path) -> Generator[Tell]:
    """Keep other processes from making the same folder; the lock of one that is killed is free again.

    What is told in here is written into the lock, where `kept` finds it.
    """
    with target.with_name(target.name + _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another process makes %s; waiting for it", target.name)
            fcntl.flock(lock, fcntl.LOCK_EX)

        def tell(text: str) -> None:
            lock.truncate(0)
            lock.write(text)
            lock.flush()

        tell("")
        try:
            yield tell
        finally:
            tell("")


def _sweep(cache: Path, but: Path) -> None:
    """Remove what killed processes left: at once, or after a week where somebody could go on with it."""
    for left in _leftovers(cache):
        target = left.with_suffix("")
        is_old = left.suffix == _DRAFT or time.time() - left.stat().st_mtime > _KEPT_PARTS_S
        if target == but or not is_old:
            continue
        with target.with_name(target.name + _LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # somebody is at it
            log.warning("%s was never finished, and is removed", left)
            shutil.rmtree(left, ignore_errors=True)


def _leftovers(cache: Path) -> Iterable[Path]:
    return [path for path in sorted(cache.iterdir()) if path.suffix in (_DRAFT, _PART) and path.is_dir()]


# ---------------------------------------------------------------------- what the cache holds


@dataclass(frozen=True)
class Kept:
    """Something in the cache.

    Args:
        folder: where it is, or will be.
        state: `whole` as far as `is_whole` sees; `making`: a process is at it; `left`: one was killed.
        size: bytes on the disk.
        source: where it is from; empty where that isn't known.
        progress: how far it is, while it is made.
    """

    folder: Path
    state: Literal["whole", "damaged", "making", "left"]
    size: int
    source: str = ""
    progress: str = ""


def kept(cache: Path) -> list[Kept]:
    """All models in the cache, by name, those that are being made too."""
    if not cache.is_dir():
        return []
    unfinished = {left.with_suffix(""): left for left in _leftovers(cache)}
    found = [_unfinished(target, left) for target, left in unfinished.items()]
    for folder in sorted(cache.iterdir()):
        if folder.is_dir() and folder.suffix not in (_DRAFT, _PART) and (folder / CONTENTS).exists():
            source = (_written(folder) or {}).get("source", "")
            state: Literal["whole", "damaged"] = "whole" if is_whole(folder) else "damaged"
            found.append(Kept(folder, state, size_of(folder), source))
    return sorted(found, key=lambda one: one.folder.name)


def _unfinished(target: Path, left: Path) -> Kept:
    try:
        with target.with_name(target.name + _LOCK).open("r") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return Kept(target, "making", size_of(left), progress=lock.read())
    except FileNotFoundError:
        pass
    return Kept(target, "left", size_of(left))


def size_of(folder: Path) -> int:
    """Bytes of all files below the folder, whoever is writing there."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue  # it was moved meanwhile
    return total
