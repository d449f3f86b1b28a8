"""The device that a model is loaded on. Nothing here knows a tensor library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

_DEVICE: Final = re.compile(r"cpu|cuda(?::(\d{1,3}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model computes. `str()` of it is what torch takes: `cpu` or `cuda:0`."""

    kind: Literal["cpu", "cuda"] = "cpu"
    index: int = 0

    @classmethod
    def parse(cls, text: str) -> Device | None:
        """The device that `cpu`, `cuda` or `cuda:1` names; None for `auto`, which only a runner can decide.

        Raises:
            ValueError: the text names no device.
        """
        if text == "auto":
            return None
        match = _DEVICE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a device; write auto, cpu, cuda or cuda:0")
        return cls() if text == "cpu" else cls("cuda", int(match[1] or 0))

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"
