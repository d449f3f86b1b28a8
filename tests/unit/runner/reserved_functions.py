"""Functions that share the main thread: some of its slots are reserved, and some functions use a model."""

from __future__ import annotations

from executor_functions import Ask

from headrace import Device, function, model, uses


@model()
def ruler(device: Device) -> str:
    return str(device)


@function()
def long(input: Ask) -> int:
    return 0


@function(reserve=1)
def short(input: Ask) -> int:
    return 0


@function()
def measure(input: Ask, *, by: str = uses(ruler)) -> int:
    return 0


@function(concurrency=3)
def measure_many(input: Ask, *, by: str = uses(ruler)) -> int:
    return 0
