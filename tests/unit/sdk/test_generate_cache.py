"""What is converted is converted once, whole or not at all."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import tiny_lm
from harness.site import eventually

from functions import _model_cache
from functions._model_cache import converted, folder_of
from functions.generate import Ask, generate, joined, smollm
from headrace import Call, Device
from headrace.model_cache import kept

QUICK = """
import os, sys, pathlib
file, folder = map(pathlib.Path, sys.argv[1:])
with (file.parent / "runs").open("a") as runs:
    runs.write("x")
folder.joinpath("config.json").write_text("{}")
folder.joinpath("model.safetensors").write_text("weights")
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HEADRACE_MODEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def gguf(tmp_path) -> Path:
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "tiny.gguf"
    file.write_bytes(b"weights")
    return file


@pytest.fixture
def quick(monkeypatch) -> None:
    """The conversion, without what takes long."""
    monkeypatch.setattr(_model_cache, "_CONVERT", QUICK)


def runs(gguf: Path) -> int:
    return len((gguf.parent / "runs").read_text())


def test_a_folder_of_safetensors_is_taken_as_it_is(tmp_path):
    for name in ("config.json", "model.safetensors", "other.gguf"):
        (tmp_path / name).touch()
    assert folder_of(tmp_path) == tmp_path


def test_folders_without_a_model_or_with_several_are_said(tmp_path, gguf):
    with pytest.raises(FileNotFoundError, match="neither a model as safetensors nor a GGUF file"):
        folder_of(tmp_path / "nothing")
    (gguf.parent / "other.gguf").touch()
    with pytest.raises(ValueError, match=r"name one: other\.gguf, tiny\.gguf"):
        folder_of(gguf.parent)


def test_a_file_is_converted_once_and_again_when_it_changes(gguf, quick, cache):
    made = folder_of(gguf.parent)
    assert made.parent == cache
    assert sorted(file.name for file in made.iterdir()) == [
        "config.json",
        "contents.json",
        "model.safetensors",
    ]
    assert folder_of(gguf) == made
    assert runs(gguf) == 1
    gguf.write_bytes(b"others.")
    assert folder_of(gguf) != made
    assert runs(gguf) == 2


def test_those_who_come_at_once_convert_once(gguf, quick, caplog):
    with ThreadPoolExecutor(4) as pool:  # a lock of a file is between open files, of threads too
        assert len(set(pool.map(converted, [gguf] * 4))) == 1
    assert runs(gguf) == 1


@pytest.mark.parametrize("harm", ["unlink", "cut", "changed"])
def test_a_damaged_folder_is_made_again(gguf, quick, caplog, harm):
    made = converted(gguf)
    if harm == "unlink":
        (made / "model.safetensors").unlink()
    else:
        (made / "config.json").write_text("{" if harm == "cut" else "[]")
    assert converted(gguf) == made
    assert (made / "config.json").read_text() == "{}"
    assert runs(gguf) == 2
    assert "damaged" in caplog.text


def test_what_a_killed_process_left_is_made_again(gguf, quick, cache):
    made = converted(gguf)
    made.rename(made.with_name(f"{made.name}.draft"))
    assert converted(gguf) == made
    assert [file.name for file in cache.iterdir() if file.suffix == ".draft"] == []


def test_a_file_that_cannot_be_converted_is_said_and_leaves_nothing(gguf, monkeypatch, cache):
    monkeypatch.setattr(_model_cache, "_CONVERT", "raise ValueError('no such architecture')")
    with pytest.raises(RuntimeError, match=r"tiny.gguf can't be converted: ValueError: no such architecture"):
        converted(gguf)
    assert [file for file in cache.iterdir() if file.is_dir()] == []


def test_the_home_has_the_cache(monkeypatch, tmp_path, gguf, quick):
    monkeypatch.delenv("HEADRACE_MODEL_CACHE")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    assert converted(gguf).parent == tmp_path / "home" / "models"


BARS = """
import pathlib, sys, time
for percent in 0, 10, 40:
    sys.stderr.write("\\r" + f"Converting tensors...: {percent:3}%| |")
sys.stderr.write("\\n")
sys.stderr.flush()
while not (pathlib.Path(sys.argv[1]).parent / "go on").exists():
    time.sleep(0.01)
"""


def test_how_far_a_conversion_is_can_be_seen(gguf, monkeypatch, cache, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(_model_cache, "_CONVERT", BARS + QUICK)
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(converted, gguf)
        try:
            eventually(
                lambda: [one.progress for one in kept(cache)] == ["Converting tensors: 40%"], "its progress"
            )
        finally:
            (gguf.parent / "go on").touch()
        assert making.result(60).is_dir()
    assert [(one.state, one.progress) for one in kept(cache)] == [("whole", "")]
    said = [record.getMessage() for record in caplog.records if "%" in record.getMessage()]
    assert said == ["tiny.gguf: Converting tensors: 0%", "tiny.gguf: Converting tensors: 40%"]


def test_the_converted_model_is_the_one_in_the_file(tmp_path, monkeypatch, caplog):
    """A real GGUF file, through the real conversion and the real loader."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaForCausalLM  # noqa: PLC0415 - it takes seconds

    caplog.set_level(logging.INFO)
    monkeypatch.setenv("TQDM_DISABLE", "1")  # as in executors
    file = tiny_lm.build_gguf(tmp_path / "model")
    monkeypatch.setenv("HEADRACE_GENERATE_MODEL", str(file.parent))
    loaded = smollm.load(Device())
    try:
        call = Call(job_id="j", attempt=1, soft_at=1e12, deadline_at=1e12)

        async def items():
            return [
                item async for item in generate.fn(Ask(prompt="Water", max_tokens=4), call=call, lm=loaded)
            ]

        answer = joined(asyncio.run(items()))
        assert answer.usage.completion_tokens == 4
        said = [record.getMessage() for record in caplog.records]
        assert any("%" in one for one in said), "how far the library is, in its own words"
        assert loaded.tokenizer.chat_template == tiny_lm.TEMPLATE
        made = LlamaForCausalLM.from_pretrained(converted(file), dtype=torch.bfloat16).state_dict()
        original = tiny_lm.network(tiny_lm._tokenizer(None)).bfloat16()
        for name, weights in original.state_dict().items():
            assert made[name].equal(weights), name
    finally:
        loaded.close()
    assert "converting" in caplog.text
    assert "converted tiny.gguf in" in caplog.text
