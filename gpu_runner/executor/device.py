"""Which device this executor computes on. Asked in the executor itself, never before the fork."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Final

from headrace.errors import SetupError
from headrace.sdk import Device

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What native libraries read when they are loaded; one that the operator has set is left as it is."""

_SPINS: Final = ("GOMP_SPINCOUNT", "10000")
"""How long a thread that waits for others spins before it lets go of its core. By default that is thirty
times as long, and all of it is lost where another process wants the core: `embed` on two threads of two
crowded cores took 196 ms of CPU for one text, and 16 without spinning; in batches of 32, 21 and 5 a text."""


def choose(wanted: str) -> Device:
    """The device for a setting of `auto`, `cpu`, `cuda` or `cuda:N`.

    `auto` is the first CUDA device where torch sees one, else the CPU; without torch it is the CPU.

    Raises:
        SetupError: a CUDA device was asked for and isn't there.
    """
    if wanted == "cpu":
        return Device("cpu")
    if importlib.util.find_spec("torch") is None:
        if wanted == "auto":
            return Device("cpu")
        raise SetupError(f"HEADRACE_DEVICE={wanted}, but torch isn't installed")
    if wanted == "auto" and not _has_nvidia_driver():
        return Device("cpu")  # spares functions that need no torch its import
    import torch  # noqa: PLC0415 - a second of import, only where a GPU may be

    index = int(wanted.partition(":")[2] or 0)
    if torch.cuda.is_available() and index < torch.cuda.device_count():
        return Device("cuda", index)
    if wanted == "auto":
        return Device("cpu")
    raise SetupError(f"HEADRACE_DEVICE={wanted}, but torch sees {torch.cuda.device_count()} CUDA devices")


def is_surely_cpu(wanted: str) -> bool:
    """Whether that setting means the CPU, as far as can be told without asking torch."""
    return wanted == "cpu" or (
        wanted == "auto" and not (_has_nvidia_driver() and importlib.util.find_spec("torch"))
    )


def _has_nvidia_driver() -> bool:
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")  # noqa: PTH110 - the latter is WSL's


def set_thread_variables(threads: int) -> None:
    """Tell libraries that are imported from here on with how many threads they may compute.

    An operator's OMP_NUM_THREADS is said in all the variables: torch takes MKL's before it.
    """
    chosen = os.environ.get("OMP_NUM_THREADS", str(threads))
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, chosen)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(*_SPINS)


def limit_threads(threads: int) -> None:
    """Let torch compute on no more than this many threads, and libraries that are imported from here on.

    Never more processes x threads than cores: two processes of two threads on two cores gave 68 texts/s
    where two of one thread gave 426. Fewer that somebody has chosen stay. Torch's other pool, between
    operations, has no threads until something is launched in it, which only such code does as asks for it.
    """
    set_thread_variables(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(min(threads, torch.get_num_threads()))
