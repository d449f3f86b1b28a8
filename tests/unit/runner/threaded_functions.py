"""Functions that compute in torch, imported by a loader that takes more threads than it may."""

from __future__ import annotations

from executor_functions import Ask

from headrace import Device, function, model, uses


@model()
def greedy(device: Device) -> dict[str, int]:
    import torch  # noqa: PLC0415 - as authors are told

    before = torch.get_num_threads()
    torch.set_num_threads(7)
    return {"while it loads": before}


@function()
def threads(input: Ask, *, loaded: dict[str, int] = uses(greedy)) -> dict[str, int]:
    import torch  # noqa: PLC0415 - likewise

    return {**loaded, "in a body": torch.get_num_threads()}
