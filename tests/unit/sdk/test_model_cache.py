"""The model cache: whole or not there, whoever else makes it, is killed, or harms it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from headrace import model_cache
from headrace.cli.models import models
from headrace.errors import HeadraceError
from headrace.model_cache import HubModel, folders, hub, located

pytestmark = pytest.mark.usefixtures("cache")

SLOW_MAKER = """
import sys
from pathlib import Path
from headrace.model_cache import make

def fill(folder, tell):
    found = folder / "weights"
    with found.open("ab") as file:
        file.write(b"half")
        file.flush()
        tell("50%")
        print("half", flush=True)
        sys.stdin.readline()
        file.write(b"whole")

make(Path(sys.argv[1]), fill, source="a test", goes_on=sys.argv[2] == "goes on")
print("made", flush=True)
"""


def filled(content: bytes = b"weights"):
    def fill(folder: Path, tell) -> None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(content)

    return fill


def never(folder: Path, tell) -> None:
    raise AssertionError("it is made though it is there")


def command(*arguments: str):
    return CliRunner().invoke(models, arguments)


def maker(target: Path, goes_on: str = "anew") -> subprocess.Popen[str]:
    """A process that makes the folder, and has done half of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_MAKER, str(target), goes_on],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_it_is_in_the_home_unless_it_is_set(cache, monkeypatch, tmp_path):
    assert model_cache.cache_folder() == cache
    assert model_cache.cache_folder(tmp_path / "other") == tmp_path / "other" / "models"
    monkeypatch.delenv("HEADRACE_HOME")
    assert model_cache.cache_folder() == tmp_path / ".headrace" / "models"
    monkeypatch.setenv("HEADRACE_MODEL_CACHE", "/shared")
    assert model_cache.cache_folder() == Path("/shared")


def test_a_folder_is_made_once_with_the_hash_of_each_file(cache):
    target = model_cache.make(cache / "one", filled(), source="a test")
    assert model_cache.make(target, never, source="a test") == target
    contents = json.loads((target / "contents.json").read_text())
    assert contents["source"] == "a test"
    assert set(contents["files"]) == {"1_Pooling/config.json", "model.safetensors"}
    assert contents["files"]["model.safetensors"] == {
        "bytes": 7,
        "sha256": hashlib.sha256(b"weights").hexdigest(),
    }
    assert cache.parent.stat().st_mode & 0o777 == 0o700  # as `headrace up` makes it


def test_what_fails_leaves_nothing(cache):
    def fails(folder: Path, tell) -> None:
        (folder / "half").touch()
        raise RuntimeError("no such architecture")

    with pytest.raises(RuntimeError, match="no such architecture"):
        model_cache.make(cache / "one", fails, source="a test")
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_another_process_waits_and_finds_it_made(cache):
    first = maker(cache / "one")
    try:
        making = model_cache.kept(cache)
        assert [(one.state, one.progress) for one in making] == [("making", "50%")]
        assert "being made, 50%" in command("cached").output
        made: list[Path] = []
        second = threading.Thread(
            target=lambda: made.append(model_cache.make(cache / "one", never, source="a test"))
        )
        second.start()
        assert not made
        assert first.stdin is not None
        first.stdin.write("\n")
        first.stdin.flush()
        second.join(60)
        assert made == [cache / "one"]
        assert (cache / "one" / "weights").read_bytes() == b"halfwhole"
    finally:
        end(first)


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_a_killed_process_left_is_never_used(cache, goes_on):
    process = maker(cache / "one", "goes on" if goes_on else "anew")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not model_cache.is_whole(cache / "one")
    assert [one.state for one in model_cache.kept(cache)] == ["left"]
    assert "left unfinished" in command("cached").output

    seen: list[list[str]] = []

    def fill(folder: Path, tell) -> None:
        seen.append([file.name for file in folder.iterdir()])
        (folder / "weights").write_bytes(b"whole")

    model_cache.make(cache / "one", fill, source="a test", goes_on=goes_on)
    assert seen == [["weights"] if goes_on else []]
    assert [one.state for one in model_cache.kept(cache)] == ["whole"]


def test_leftovers_of_others_are_removed_but_not_what_somebody_works_on(cache):
    busy = maker(cache / "busy")
    killed = maker(cache / "killed")
    end(killed)
    old = maker(cache / "old", "goes on")
    end(old)
    new = maker(cache / "new", "goes on")
    end(new)
    long_ago = (cache / "old.part").stat().st_mtime - 8 * 86400
    os.utime(cache / "old.part", (long_ago, long_ago))
    try:
        model_cache.make(cache / "one", filled(), source="a test")
        left = sorted(path.name for path in cache.iterdir() if path.is_dir())
        assert left == ["busy.draft", "new.part", "one"]
    finally:
        end(busy)


@pytest.mark.parametrize("harm", ["unlink", "cut", "changed", "more"])
def test_a_damaged_folder_is_found_and_replaced(cache, harm):
    target = model_cache.make(cache / "one", filled(), source="a test")
    assert command("verify").output.startswith("one: whole, in ")
    weights = target / "model.safetensors"
    match harm:
        case "unlink":
            weights.unlink()
        case "cut":
            weights.write_bytes(b"w")
        case "changed":
            weights.write_bytes(b"Weights")
        case "more":
            (target / "other.json").touch()
    assert not model_cache.is_whole(target)
    found = command("verify", "one")
    assert isinstance(found.exception, HeadraceError)
    assert "one: model.safetensors" in str(found.exception) or "other.json" in str(found.exception)
    assert "one: damaged" in found.output
    model_cache.make(target, filled(), source="a test")
    assert command("verify").exit_code == 0


def test_large_files_are_hashed_by_verify_only(cache, monkeypatch):
    monkeypatch.setattr(model_cache.folders, "_SMALL", 4)
    target = model_cache.make(cache / "one", filled(), source="a test")
    (target / "model.safetensors").write_bytes(b"Weights")
    assert model_cache.is_whole(target)
    assert model_cache.problems(target) == ["model.safetensors has changed: its SHA-256 isn't what it was"]


@pytest.mark.parametrize(
    "contents",
    [
        "",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 2}',
        '{"format": 2, "files": []}',
        '{"format": 2, "files": {"model.safetensors": {"bytes": 7}}}',
        '{"format": 2, "files": {"model.safetensors": 7}}',
        None,
    ],
)
def test_a_folder_without_its_list_is_not_whole(cache, contents):
    target = model_cache.make(cache / "one", filled(), source="a test")
    if contents is None:
        (target / "contents.json").unlink()
    else:
        (target / "contents.json").write_text(contents)
    assert not model_cache.is_whole(target)
    assert model_cache.problems(target) == ["contents.json is missing or damaged"]


@pytest.mark.parametrize("at", ["stat", "sha256"])
def test_a_folder_that_another_process_replaces_meanwhile_is_not_whole(cache, monkeypatch, at):
    target = model_cache.make(cache / "one", filled(), source="a test")
    list_names = folders._names
    hash_of = folders.sha256

    def names(folder: Path) -> list[str]:
        found = list_names(folder)
        if at == "stat":
            shutil.rmtree(folder)
        return found

    def sha256(file: Path) -> str:
        file.unlink()
        return hash_of(file)

    monkeypatch.setattr(folders, "_names", names)
    if at == "sha256":
        monkeypatch.setattr(folders, "sha256", sha256)
    assert not model_cache.is_whole(target)


def test_verify_names_what_is_not_there(cache):
    assert "no model 'one'" in str(command("verify", "one").exception)
    assert command("verify").exit_code == 0
    assert command("cached").output == f"nothing is in {cache}\n"


# ---------------------------------------------------------------------- what a setting names

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_setting_names_a_path_or_what_was_fetched(cache, tmp_path):
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert located("org/name", "SETTING") == Path("org/name")
    with pytest.raises(FileNotFoundError, match=r"SETTING=/no/where: there is no such file or folder"):
        located("/no/where", "SETTING")
    named = f"org/other@{COMMIT}"
    with pytest.raises(FileNotFoundError, match=rf"isn't there: `headrace models fetch {named}`"):
        located(named, "SETTING")
    folder = model_cache.make(HubModel("org/other", COMMIT).folder(cache), filled(), source="a test")
    assert located(named, "SETTING") == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=f"is damaged: `headrace models fetch {named}`"):
        located(named, "SETTING")


@pytest.mark.parametrize("revision", ["", "@main", "@v1.0", "@0123456"])
def test_a_model_of_a_hub_has_to_be_pinned(revision):
    with pytest.raises(ValueError, match="needs its commit, 40 hexadecimal digits, as in org/other@"):
        located(f"org/other{revision}", "SETTING")


@pytest.mark.parametrize("text", ["name", "a/b/c", "../b", "/a/b", "a/b@", "a/b@x y", "a/..", "~/b"])
def test_other_texts_name_no_model_of_a_hub(text):
    assert HubModel.parsed(text) is None


@pytest.mark.parametrize(
    ("name", "is_inside"),
    [
        ("model.safetensors", True),
        ("a/b.json", True),
        ("a..b.json", True),
        ("/etc/model.safetensors", False),
        ("../model.safetensors", False),
        ("a/../../b.json", False),
        ("..\\b.json", False),
        ("C:\\b.json", False),
        ("", False),
    ],
)
def test_names_that_lead_elsewhere_are_not_fetched(name, is_inside):
    assert hub._is_inside(name) is is_inside
    file = SimpleNamespace(rfilename=name)
    weights = SimpleNamespace(rfilename="weights.safetensors")
    chosen = hub._chosen(HubModel("a/b"), [weights, file])
    assert (file in chosen) is is_inside
