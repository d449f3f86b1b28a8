"""Which files of a developer's project are watched, and what counts as a change."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from headrace.site import project
from headrace.site.project import Project, folders_of, forget_compiled


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def watched(here: Path) -> Project:
    return Project({here: True}, here / "data")


def test_what_comes_goes_and_gets_another_content_has_changed(here: Path) -> None:
    (here / "kept.py").write_text("a")
    (here / "gone.py").write_text("a")
    found = watched(here)
    assert found.look() == []

    (here / "kept.py").write_text("b")
    (here / "gone.py").unlink()
    (here / "package" / "deep").mkdir(parents=True)
    (here / "package" / "deep" / "new.py").write_text("a")
    (here / ".env").write_text("A=1")
    (here / "notes.txt").write_text("a")
    assert found.look() == [here / ".env", here / "gone.py", here / "kept.py", here / "package/deep/new.py"]
    assert found.look() == []


def test_a_save_that_changes_nothing_is_none(here: Path) -> None:
    file = here / "kept.py"
    file.write_text("a")
    found = watched(here)
    file.write_text("a")
    os.utime(file, (1, 1))
    assert found.look() == []
    draft = here / "draft"
    draft.write_text("a")
    draft.replace(file)
    assert found.look() == []


def test_what_is_no_code_of_the_project_is_left_out(here: Path) -> None:
    (here / "env").mkdir()
    (here / "env" / "pyvenv.cfg").touch()
    for name in ("env", ".hidden", "__pycache__", "node_modules", "data", "lib/site-packages"):
        (here / name).mkdir(parents=True, exist_ok=True)
    found = watched(here)
    for folder in ("env", ".hidden", "__pycache__", "node_modules", "data", "lib/site-packages"):
        (here / folder / "some.py").write_text("a")
    (here / ".#lock.py").write_text("a")
    assert found.look() == []


def test_what_can_not_be_read_takes_nothing_else_along(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists

    def refuse(path: Path) -> bool:
        if path.parent == here / "locked":  # as for anybody but root
            raise PermissionError(13, "Permission denied")
        return exists(path)

    monkeypatch.setattr(Path, "exists", refuse)
    for name in ("a", "locked", "z"):
        (here / name).mkdir()
    (here / "locked").chmod(0)
    (here / "round.py").symlink_to("round.py")
    found = watched(here)
    for name in ("a/new.py", "z/new.py", "own.py"):
        (here / name).write_text("a")
    assert found.look() == [here / "a/new.py", here / "own.py", here / "z/new.py"]


def test_a_huge_project_is_watched_near_its_top(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "MOST_FOLDERS", 3)
    for name in ("a/below", "b", "c"):
        (here / name).mkdir(parents=True)
    found = watched(here)
    assert found.is_cut
    for name in ("a/new.py", "a/below/new.py", "c/new.py"):
        (here / name).write_text("a")
    assert found.look() == [here / "a/new.py"]


def test_modules_elsewhere_are_watched_unless_they_are_installed(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    (other / "tools" / "deep").mkdir(parents=True)
    (other / "tools" / "__init__.py").write_text("raise AssertionError('nothing is imported')")
    (other / "single.py").touch()
    (here / "shop.py").touch()
    monkeypatch.setattr(sys, "path", [str(here), str(other), *sys.path])
    named = ["shop", "tools.deep", "single", "pytest", "json", "sys", "there_is_no_such_module"]
    found = folders_of(named)
    assert not any("site-packages" in folder.parts for folder in found)
    assert {folder: found[folder] for folder in (here, other / "tools", other)} == {
        here: True,
        other / "tools": True,
        other: False,
    }
    watching = Project(found, here / "data")
    (other / "beside").mkdir()
    for name in ("beside/some.py", "helper.py", "tools/deep/new.py"):
        (other / name).write_text("a")
    assert watching.look() == [other / "helper.py", other / "tools/deep/new.py"]


def test_what_was_compiled_is_forgotten(here: Path) -> None:
    compiled = Path(importlib.util.cache_from_source(str(here / "shop.py")))
    compiled.parent.mkdir()
    compiled.touch()
    forget_compiled([here / "shop.py", here / "never_compiled.py"])
    assert not compiled.exists()


async def next_of(changes: AsyncGenerator[list[Path]]) -> list[Path]:
    async with asyncio.timeout(20):
        return await anext(changes)


def test_changes_are_told_wherever_they_are(here: Path) -> None:
    (here / "shop.py").write_text("a")
    found = watched(here)

    async def follow() -> None:
        async with contextlib.aclosing(found.changes()) as changes:
            (here / "shop.py").write_text("before the watch began")
            assert await next_of(changes) == [here / "shop.py"]
            (here / "shop.py").write_text("c")
            assert await next_of(changes) == [here / "shop.py"]
            (here / "package").mkdir()
            (here / "package" / "new.py").write_text("a")
            assert await next_of(changes) == [here / "package" / "new.py"]
            (here / "package" / "new.py").write_text("in a folder that came later")
            assert await next_of(changes) == [here / "package" / "new.py"]
            (here / "package" / "new.py").unlink()
            (here / "package").rmdir()
            assert await next_of(changes) == [here / "package" / "new.py"]
            (here / "shop.py").write_text("d")
            assert await next_of(changes) == [here / "shop.py"]

    asyncio.run(follow())


def test_where_the_kernel_does_not_watch_files_are_read_again_and_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_paths: Path, **_options: object) -> object:
        raise OSError("OS file watch limit reached")

    monkeypatch.setattr(project, "awatch", refuse)
    found = watched(here)

    async def follow() -> None:
        async with contextlib.aclosing(found.changes()) as changes:
            (here / "shop.py").write_text("a")
            assert await next_of(changes) == [here / "shop.py"]

    asyncio.run(follow())
