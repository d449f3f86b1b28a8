"""The Python files of a developer's project, and which of them change.

What counts is the files' content: a notification of the kernel only says when to look. So a save that changes
nothing is none, and no change is missed between two watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import stat
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from watchfiles import Change, awatch  # pyright: ignore[reportUnknownVariableType] - it names trio's types

from headrace.settings import ENV_FILE

MOST_FOLDERS: Final = 2000
"""Of a larger project, the folders nearest to its top are watched."""
_STEP_MS: Final = 50  # an editor's save is several steps, and several files may be saved together
_DEBOUNCE_MS: Final = 400
_LOOK_MS: Final = 1000
_POLL_S: Final = 0.5
_IGNORED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})


class Project:
    """Watches the `*.py` in some folders and below, and the current folder's `.env`.

    Hidden folders, virtual environments and caches are left out.

    Args:
        folders: where to look, and whether below them too.
        home: Headrace's own folder, which is left out too.
    """

    def __init__(self, folders: Mapping[Path, bool], home: Path) -> None:
        self._tops = folders
        self._home = home
        self._env = Path.cwd() / ENV_FILE
        self._folders: list[Path] = []
        self._files: dict[Path, tuple[object, str]] = {}  # with what tells that a file has to be read again
        self.is_cut = False
        self.look()

    def look(self) -> list[Path]:
        """Read what has changed since the last look: files that came, went, or have another content."""
        self._folders = self._walk()
        before, self._files = self._files, {}
        for path in self._candidates():
            with contextlib.suppress(OSError):  # it isn't there, or can't be read
                status = path.stat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                mark = (status.st_mtime_ns, status.st_size, status.st_ino)
                known = before.get(path)
                digest = known[1] if known and known[0] == mark else _digest(path)
                self._files[path] = (mark, digest)
        return sorted(
            path
            for path in before.keys() | self._files.keys()
            if before.get(path, ("", ""))[1] != self._files.get(path, ("", ""))[1]
        )

    async def changes(self) -> AsyncGenerator[list[Path]]:
        """The files that changed, each time that some have; for ever."""
        while True:
            folders = self._folders
            try:
                async with contextlib.aclosing(self._wakes(folders)) as wakes:
                    async for _ in wakes:
                        if changed := await asyncio.to_thread(self.look):
                            yield changed
                        if self._folders != folders:
                            break
            except OSError:  # a folder went, or the kernel watches no more of them for this user
                await asyncio.sleep(_POLL_S)
                if changed := await asyncio.to_thread(self.look):
                    yield changed

    async def _wakes(self, folders: list[Path]) -> AsyncGenerator[None]:
        """Once when the watch has begun, then each time that something may have changed."""
        watched = {str(folder) for folder in folders}

        def matters(_change: Change, path: str) -> bool:
            return path.endswith((".py", ENV_FILE)) or path in watched or Path(path).is_dir()

        begun = False
        async for events in awatch(
            *folders,
            watch_filter=matters,
            debounce=_DEBOUNCE_MS,
            step=_STEP_MS,
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
            recursive=False,
            ignore_permission_denied=True,
        ):
            if events or not begun:
                begun = True
                yield

    def _walk(self) -> list[Path]:
        """All folders, those nearest to the top first."""
        found = [top for top, is_deep in self._tops.items() if is_deep]
        for folder in found:  # it grows meanwhile
            if len(found) >= MOST_FOLDERS:
                self.is_cut = True
                break
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                found += sorted(Path(entry.path) for entry in entries if self._is_watched(entry))
        return list(dict.fromkeys([*self._tops, *found]))[:MOST_FOLDERS]

    def _is_watched(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(".") or entry.name in _IGNORED or Path(entry.path) == self._home:
            return False
        try:
            return entry.is_dir(follow_symlinks=False) and not Path(entry.path, "pyvenv.cfg").exists()
        except OSError:  # it can't be read, which is no matter of its neighbours
            return False

    def _candidates(self) -> Iterable[Path]:
        for folder in self._folders:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".py") and not entry.name.startswith("."):
                        yield Path(entry.path)
        yield self._env


def folders_of(modules: Sequence[str]) -> dict[Path, bool]:
    """The current folder, and those outside of it that hold a named module which isn't installed.

    Nothing is imported.

    Returns:
        For each whether what is below belongs to it: not beside a module of one file, which may be anywhere.
    """
    here = Path.cwd()
    found = {here: True}
    for name in modules:
        spec = PathFinder.find_spec(name.partition(".")[0])
        if spec is None:
            continue
        places = [Path(place) for place in spec.submodule_search_locations or ()]
        is_package = bool(places)
        if not places and spec.has_location and spec.origin is not None:
            places = [Path(spec.origin).parent]
        for place in places:
            if not place.is_relative_to(here) and not _IGNORED & set(place.parts) and place.is_dir():
                found[place] = found.get(place, False) or is_package
    return found


def forget_compiled(paths: Iterable[Path]) -> None:
    """Remove what Python compiled of these files.

    It tells a new content by its second and its size alone, and would run the old one if both are the same.
    """
    for path in paths:
        with contextlib.suppress(OSError, NotImplementedError):
            Path(importlib.util.cache_from_source(str(path))).unlink()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
