"""How much memory there is, and how much a process takes. Bytes throughout."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from gpu_runner.executor.device import is_surely_cpu

CPU_SHARE: Final = 0.8
CUDA_SHARE: Final = 0.9
"""Of the device's memory, where the operator has set nothing."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def resident(pid: int) -> int:
    """What a process has in memory, pages that it shares with others included; 0: it is gone."""
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def usual_budget(device: str) -> int:
    """The budget for a setting of `HEADRACE_DEVICE`, in bytes; 0: executors will tell, as it may be CUDA."""
    return default_budget() if is_surely_cpu(device) else 0


def default_budget() -> int:
    """What models on the CPU may take: a share of the machine's memory, or of this process' limit."""
    return int(CPU_SHARE * min(_machine(), *_cgroup_limits()))


def _machine() -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", (_PROC / "meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else os.sysconf("SC_PHYS_PAGES") * _PAGE


def _cgroup_limits() -> list[int]:
    """The limits of this process' groups, of version 2 and 1; a very large one where none is set."""
    limits = [2**62]
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return limits
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        # In a container the path may be the host's, and isn't there: its own group is at the root.
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                limits += _limit(folder / name)
    return limits


def _limit(file: Path) -> list[int]:
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):  # not there, or `max`
        return []
