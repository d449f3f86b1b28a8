"""What this executor takes of its device, and giving back what nothing uses. Bytes throughout.

Nothing here touches a CUDA device before something else has, or a model is about to be loaded on it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Any, Final

from headrace.sdk import Device

CUDA_SHARE: Final = 0.9
"""Of a CUDA device's memory, where no budget is set."""

_MALLOC: Final = {
    "trim_threshold": (-1, 128 * 2**20),  # how much is kept at the heap's end
    "mmap_threshold": (-3, 32 * 2**20),  # from which size on a piece is mapped by itself; no more is allowed
}
"""What is set of the allocator: its name, and mallopt(3)'s parameter and value."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


def resident() -> int:
    """What this process has in memory, pages that it shares with others included."""
    return int(_STATM.read_bytes().split()[1]) * _PAGE


def keep_freed() -> None:
    """Have the allocator keep some of what a body frees for the next, until it is given back.

    It would return a forward pass' arrays to the system after each pass, and have all their pages made anew
    in the next: of `embed` that is a twentieth of the time. What the environment sets of it stays as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of the GNU C library
    if mallopt is not None:
        for name, (parameter, value) in _MALLOC.items():
            if not _is_set(name):
                mallopt(parameter, value)


def _is_set(name: str) -> bool:
    """Whether the environment sets a parameter of the allocator, in one of the two ways that there are."""
    tunables = (one.partition("=")[0] for one in os.environ.get("GLIBC_TUNABLES", "").split(":"))
    return f"MALLOC_{name.upper()}_" in os.environ or f"glibc.malloc.{name}" in tunables


def give_back() -> None:
    """Return to system and device what nothing uses any more."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)


class DeviceMemory:
    """The memory that models are loaded into: of a CUDA device, or this process' own.

    Args:
        device: where.
        budget: what all executors may take of it together; 0: what is usual.
    """

    def __init__(self, device: Device, budget: int = 0) -> None:
        self._device = device
        self._budget = budget

    @property
    def is_own(self) -> bool:
        """Whether it is the process' own, so that others can see what it takes."""
        return self._device.kind != "cuda"

    def total(self) -> int:
        """What the device has in all; 0 for the CPU."""
        return 0 if self.is_own else int(_cuda().get_device_properties(self._index).total_memory)

    def taken(self) -> int:
        """What this process takes of it."""
        return resident() if self.is_own else int(_cuda().memory_reserved(self._index))

    def share(self, part: float) -> int:
        """So much of what all processes may take together; 0 for the CPU: others see to that."""
        return 0 if self.is_own else max(1, int(self._most(self.total()) * part))

    def allow(self, more: int = 0) -> None:
        """Let this process take so much more than it does, or 0: as much as all may take together.

        On a CPU nothing holds it to that but who watches it.
        """
        if self.is_own:
            return
        total = self.total()
        budget = self._most(total)
        most = min(budget, self.taken() + more) if more else budget
        _cuda().set_per_process_memory_fraction(min(1.0, most / total), self._index)

    def _most(self, total: int) -> int:
        return self._budget or int(total * CUDA_SHARE)

    @property
    def _index(self) -> int:
        return self._device.index


def _cuda() -> Any:
    import torch  # noqa: PLC0415 - only where a CUDA device has been chosen, which has imported it

    return torch.cuda
