"""Models that take long to read are converted once, into a folder that all processes of a user share.

A GGUF file takes a quarter of a minute to be read by transformers; what is made of it here, two seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

log = logging.getLogger(__name__)

CACHE_SETTING: Final = "HEADRACE_MODEL_CACHE"
"""The environment variable that names the folder; default: `headrace/models` in the user's cache folder."""

_FORMAT: Final = "1"  # other numbers for what later versions make otherwise
_CONTENTS: Final = "contents.json"
_END_OF_FILE: Final = 2**20
_SMALL: Final = 2**24  # of larger files only the length is compared: their own format tells the rest


def folder_of(path: Path) -> Path:
    """The folder of a model in the form that transformers loads by itself.

    Args:
        path: a folder that holds a model as safetensors, or one GGUF file; or such a file.

    Raises:
        FileNotFoundError: there is no model.
        ValueError: there are several GGUF files, so it has to be said which.
        OSError: the cache can't be written.
        RuntimeError: the file can't be converted.
    """
    if path.is_file():
        return converted(path)
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return path
    found = sorted(path.glob("*.gguf"))
    if not found:
        raise FileNotFoundError(f"{path} has neither a model as safetensors nor a GGUF file")
    if len(found) > 1:
        raise ValueError(f"{path} has several GGUF files; name one: {', '.join(one.name for one in found)}")
    return converted(found[0])


def converted(gguf: Path) -> Path:
    """The folder with what was made of a GGUF file, made now if need be; raises as `folder_of`.

    It is whole as soon as it is there: it is made under another name. Other processes wait meanwhile.
    """
    target = _cache() / f"{gguf.stem}-{_fingerprint(gguf)}"
    if _is_whole(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target):
        if not _is_whole(target):
            _make(gguf, target)
    return target


def _cache() -> Path:
    configured = os.environ.get(CACHE_SETTING)
    if configured:
        return Path(configured)
    # To be absolute, says the standard; one that isn't is to be ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "headrace" / "models"


def _fingerprint(file: Path) -> str:
    """Equal for equal files, as far as their lengths, first and last bytes tell: others differ at the end."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{_FORMAT} {size} ".encode())
    with file.open("rb") as opened:
        digest.update(opened.read(_END_OF_FILE))
        opened.seek(max(0, size - _END_OF_FILE))
        digest.update(opened.read())
    return digest.hexdigest()[:16]


@contextmanager
def _alone(target: Path) -> Generator[None]:
    """Keep other processes from making the same folder; the lock of one that is killed is free again."""
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another process converts %s; waiting for it", target.name)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(gguf: Path, target: Path) -> None:
    draft = target.with_name(f"{target.name}.draft")
    for left in (draft, target):  # of a process that was killed; and what has lost a part since
        if left.exists():
            log.warning("%s is incomplete or damaged, and is made again", left)
            shutil.rmtree(left)
    started = time.monotonic()
    log.info(
        "converting %s (%d MB) into %s, once: this can take a minute", gguf, gguf.stat().st_size >> 20, target
    )
    draft.mkdir()
    # In a process of its own, since what the conversion leaves in memory would stay as long as the executor.
    ran = subprocess.run(  # noqa: S603 - this interpreter, on a file that the operator named
        [sys.executable, "-c", _CONVERT, str(gguf), str(draft)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ran.returncode != 0:
        shutil.rmtree(draft)
        said = ran.stderr.strip().splitlines()
        reason = said[-1] if said else f"exit status {ran.returncode}"
        raise RuntimeError(f"{gguf} can't be converted: {reason}")
    (draft / _CONTENTS).write_text(json.dumps(_contents(draft)))
    draft.rename(target)
    log.info("converted %s in %.0f s", gguf.name, time.monotonic() - started)


_CONVERT: Final = f"import sys; from {__name__} import write; write(sys.argv[1], sys.argv[2])"


def write(gguf: str, folder: str) -> None:
    """Write the model and its tokenizer into the folder, as bf16 safetensors; run in a process of its own."""
    import copy

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = Path(gguf)
    read = cast("Any", AutoModelForCausalLM).from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.bfloat16, local_files_only=True
    )
    # One that was quantized refuses to be saved: its weights go into another, which never was.
    config = copy.deepcopy(read.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = type(read)(config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    tokenizer = cast("Any", AutoTokenizer).from_pretrained(
        file.parent, gguf_file=file.name, local_files_only=True
    )
    tokenizer.save_pretrained(folder)


def _is_whole(folder: Path) -> bool:
    """Whether all that was written there is there still."""
    try:
        written = json.loads((folder / _CONTENTS).read_text())
        return written == _contents(folder)
    except (OSError, ValueError):
        return False


def _contents(folder: Path) -> dict[str, Any]:
    """The files by name: their length, and the hash of those that are small."""
    return {
        file.name: [file.stat().st_size, _hash(file) if file.stat().st_size <= _SMALL else None]
        for file in sorted(folder.iterdir())
        if file.name != _CONTENTS
    }


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
