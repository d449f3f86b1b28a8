"""What the hardware computes in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from headrace.sdk import Device


def native_dtype(device: Device) -> torch.dtype:
    """bf16 where the hardware computes in it; elsewhere it is emulated, and slower than fp32."""
    import torch

    if device.kind == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = bool(_cpu_flags() & {"avx512_bf16", "amx_bf16"})
    return torch.bfloat16 if native else torch.float32


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())
