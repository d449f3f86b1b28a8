"""A function whose model is on the executor's device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from executor_functions import Ask
from pydantic import BaseModel

from headrace import Budget, Device, function, model, uses

if TYPE_CHECKING:
    import torch


class Told(BaseModel):
    device: str
    total: float
    began: float
    ended: float


@model()
def ones(device: Device) -> torch.Tensor:
    import torch  # noqa: PLC0415 - as authors are told

    return torch.ones(8, device=str(device))


@function(budget=Budget(sync=30), concurrency=3)
def total(input: Ask, *, held: torch.Tensor = uses(ones)) -> Told:
    """Computes there, and takes a while."""
    began = time.monotonic()
    time.sleep(input.seconds)
    return Told(device=str(held.device), total=float(held.sum()), began=began, ended=time.monotonic())
