"""A function that tells what its executor has in memory: discovered beside the one that is measured."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from headrace.sdk import function

NAME: Final = "headrace-bench-memory"
_SELF: Final = Path("/proc/self")


class Memory(BaseModel, frozen=True):
    """What one executor takes, in bytes; what is of a CUDA device is 0 on a CPU.

    `own` is the part of `resident` that it shares with no other process. Peaks count since the last look.
    """

    resident: int = 0
    own: int = 0
    peak: int = 0
    allocated: int = 0
    reserved: int = 0
    peak_reserved: int = 0

    @property
    def own_peak(self) -> int:
        """What this process alone took at its peak."""
        return self.own + max(0, self.peak - self.resident)


@function(name=NAME)
def memory(input: int) -> Memory:  # noqa: A002 - the platform's word
    """What the process has in memory; its peaks begin anew."""
    gc.collect()
    device = _device()
    status = (_SELF / "status").read_text()
    found = Memory(
        resident=_kib("VmRSS", status),
        own=_own(_kib("VmRSS", status)),
        peak=_kib("VmHWM", status),
        **device,
    )
    with contextlib.suppress(OSError):  # some kernels can't, then peaks are those since the start
        (_SELF / "clear_refs").write_text("5")
    return found


def _own(otherwise: int) -> int:
    try:
        rollup = (_SELF / "smaps_rollup").read_text()
    except OSError:
        return otherwise
    return _kib("Private_Clean", rollup) + _kib("Private_Dirty", rollup)


def _kib(name: str, text: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _device() -> dict[str, int]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    found = {
        "allocated": int(torch.cuda.memory_allocated()),
        "reserved": int(torch.cuda.memory_reserved()),
        "peak_reserved": int(torch.cuda.max_memory_reserved()),
    }
    torch.cuda.reset_peak_memory_stats()
    return found
