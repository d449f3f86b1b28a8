"""Models that take long to read are converted once, into the model cache of all executors of a machine.

A GGUF file takes a quarter of a minute to be read by transformers; what is made of it here, two seconds.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, cast

from headrace.model_cache import cache_folder, located, make, packaged

log = logging.getLogger(__name__)

_FORMAT: Final = "2"  # other numbers for what later versions make otherwise
_END_OF_FILE: Final = 2**20
_STEP: Final = re.compile(r"(\w[^:\r\n]*): +(\d+)%\|")
_TOLD_EVERY: Final = 25


def model_path(function: str, setting: str) -> Path:
    """Where a function's model is: the one that its setting names, or the one that comes with Headrace.

    Raises:
        ModuleNotFoundError: none is named, and the function's own isn't installed and wasn't fetched.
        FileNotFoundError, ValueError: as `headrace.model_cache.located`.
    """
    configured = os.environ.get(setting)
    return located(configured, setting) if configured else packaged(function)


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
    target = cache_folder() / f"{gguf.stem}-{_fingerprint(gguf)}"
    return make(target, lambda folder, tell: _convert(gguf, folder, tell), source=f"made of {gguf}")


def _fingerprint(file: Path) -> str:
    """Equal for equal files, as far as their lengths, first and last bytes tell: others differ at the end."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{_FORMAT} {size} ".encode())
    with file.open("rb") as opened:
        digest.update(opened.read(_END_OF_FILE))
        opened.seek(max(0, size - _END_OF_FILE))
        digest.update(opened.read())
    return digest.hexdigest()[:16]


def _convert(gguf: Path, folder: Path, tell: Callable[[str], None]) -> None:
    started = time.monotonic()
    log.info(
        "converting %s (%d MB) into %s, once: this can take a minute", gguf, gguf.stat().st_size >> 20, folder
    )
    tell("reading the file")  # most of the time: the library says nothing of it
    bars = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}  # executors have it
    # In a process of its own, since what the conversion leaves in memory would stay as long as the executor.
    with subprocess.Popen(  # noqa: S603 - this interpreter, on a file that the operator named
        [sys.executable, "-c", _CONVERT, str(gguf), str(folder)],
        env={**bars, "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            assert process.stderr is not None
            said = _followed(process.stderr, gguf.name, tell)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise RuntimeError(f"{gguf} can't be converted: {said or f'exit status {process.returncode}'}")
    log.info("converted %s in %.0f s", gguf.name, time.monotonic() - started)


def _followed(stderr: IO[str], name: str, tell: Callable[[str], None]) -> str:
    """Tell how far the library's progress bars are; returns the last other line."""
    last, told = "", ("", 0)
    for line in stderr:  # a bar's carriage returns are line ends here
        step = _STEP.match(line.strip())
        if step is None:
            last = line.strip() or last
            continue
        what, percent = step[1].rstrip("."), int(step[2])
        tell(f"{what}: {percent}%")
        if told[0] != what or percent - told[1] >= _TOLD_EVERY:
            told = (what, percent)
            log.info("%s: %s: %d%%", name, what, percent)
    return last


# It ends when whoever started it is killed: what it wrote is then removed by the next one.
_CONVERT: Final = (
    "import signal, sys; from headrace.process import signal_on_parent_death; "
    f"signal_on_parent_death(signal.SIGKILL); from {__name__} import write; write(sys.argv[1], sys.argv[2])"
)


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
