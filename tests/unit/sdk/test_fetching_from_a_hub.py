"""`headrace models fetch` of a hub's model: from a hub on this machine, and where there is none."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import hub as hubs

from headrace.model_cache import is_whole, located, problems

pytest.importorskip("huggingface_hub")

WEIGHTS = random.Random(5).randbytes(300_000)
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "1_Pooling/config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "LICENSE": b"Apache-2.0",
    "pytorch_model.bin": b"a pickle",
    "modeling.py": b"raise SystemExit",
    "onnx/config.json": b"{}",
    "onnx/model.onnx": b"for another engine",
}
WANTED = ["1_Pooling/config.json", "LICENSE", "config.json", "model.safetensors"]
PINNED = f"{hubs.NAME}@{hubs.COMMIT}"


@pytest.fixture
def hub():
    with hubs.serving(dict(FILES)) as serving:
        yield serving


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(home) -> Path:
    return home / "models" / f"org--tiny@{hubs.COMMIT}"


def started(name: str, url: str, home: Path, **more: str) -> subprocess.Popen[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HEADRACE_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "models", "fetch", name],
        env={**clean, "HF_ENDPOINT": url, "HF_HOME": str(home / "hf"), "HEADRACE_HOME": str(home), **more},
        cwd=home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def fetched(name: str, url: str, home: Path, **more: str) -> tuple[int, str, str]:
    process = started(name, url, home, **more)
    said, complained = process.communicate(timeout=60)
    return process.returncode, said, complained


def names(folder: Path) -> list[str]:
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in found if name != "contents.json")


def test_what_is_needed_is_fetched_checked_and_found(hub, home, folder, monkeypatch):
    code, said, complained = fetched(hubs.NAME, hub.url, home)
    assert (code, complained.strip().splitlines()[-1]) == (0, f"fetching {PINNED}: checking")
    assert f"{hubs.NAME} is now {PINNED}\n" in said
    assert names(folder) == WANTED
    assert problems(folder) == []
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    monkeypatch.delenv("HEADRACE_MODEL_CACHE", raising=False)
    assert located(PINNED, "SETTING") == folder

    hub.requests.clear()
    assert fetched(PINNED, hub.url, home)[0] == 0
    assert not [path for _, path in hub.requests if hubs.NAME in path]  # it is there
    (folder / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"?")
    assert fetched(PINNED, hub.url, home)[0] == 0
    assert problems(folder) == []


def test_one_that_is_killed_leaves_no_model_and_the_next_goes_on(hub, home, folder):
    hub.stop_after = 200_000
    first = started(PINNED, hub.url, home)
    try:
        assert hub.stopped.wait(60)
        part = folder.with_name(f"{folder.name}.part")
        small = [name for name in WANTED if name != "model.safetensors"]
        while not all((part / name).exists() for name in small) or not list(part.rglob("*.incomplete")):
            assert first.poll() is None
            time.sleep(0.01)
    finally:
        first.kill()
        first.communicate()
    hub.go_on.set()
    assert not folder.exists()
    hub.requests.clear()
    assert fetched(PINNED, hub.url, home)[0] == 0
    downloads = [path for method, path in hub.requests if method == "GET" and "/resolve/" in path]
    assert [path.rpartition("/")[2] for path in downloads] == ["model.safetensors"]
    assert problems(folder) == []
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_two_at_once_fetch_it_once(hub, home, folder):
    hub.stop_after = 1000
    both = [started(PINNED, hub.url, home) for _ in range(2)]
    try:
        assert hub.stopped.wait(60)
        hub.go_on.set()
        for one in both:
            one.communicate(timeout=60)
    finally:
        for one in both:
            one.kill()
            one.communicate()
    assert [one.returncode for one in both] == [0, 0]
    downloads = [path for method, path in hub.requests if method == "GET" and "/resolve/" in path]
    assert len(downloads) == len(WANTED)
    assert is_whole(folder)


@pytest.mark.parametrize("harmed", ["model.safetensors", "config.json"])
def test_a_file_that_was_changed_on_the_way_is_refused(hub, home, folder, harmed):
    hub.harm = harmed
    code, _, complained = fetched(PINNED, hub.url, home)
    assert code == 1
    assert f"{harmed} of {PINNED} isn't what the hub says it is; fetch it again" in complained
    assert not folder.exists()
    hub.harm = ""
    assert fetched(PINNED, hub.url, home)[0] == 0
    assert problems(folder) == []


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"a pickle"}, "no weights as safetensors or GGUF"),
        ({"a.gguf": b"1", "b.gguf": b"2"}, "has 2 GGUF files: download the one you want"),
    ],
)
def test_what_cannot_be_chosen_or_may_run_code_is_not_fetched(hub, home, files, said):
    hub.files = files
    code, _, complained = fetched(PINNED, hub.url, home)
    assert code == 1
    assert said in complained


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/none", "the hub has no model org/none"),
        ("org/tiny@v9", "org/tiny has no revision v9"),
    ],
)
def test_what_the_hub_does_not_have_is_said(hub, home, name, said):
    code, _, complained = fetched(name, hub.url, home)
    assert code == 1
    assert said in complained


def test_without_a_network_it_is_said_what_to_do(home):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"  # bound, and nobody listens
        code, _, complained = fetched(PINNED, url, home)
    assert code == 1
    assert f"{PINNED} can't be fetched: " in complained
    assert "copy a folder with the model here, and name that folder in the function's setting" in complained


def test_the_librarys_own_switch_for_no_network_is_obeyed(hub, home):
    code, _, complained = fetched(PINNED, hub.url, home, HF_HUB_OFFLINE="1")
    assert code == 1
    assert "HF_HUB_OFFLINE is set" in complained
    assert hub.requests == []
