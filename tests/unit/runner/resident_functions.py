"""Functions whose models really take memory: tens of MiB, written to."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from executor_functions import Ask

from headrace import FOREVER, Batch, Budget, Device, function, model, uses

MIB = 2**20


def fill(device: Device, mib: int) -> Any:
    """So much memory of the device, in use."""
    if device.kind == "cuda":
        import torch  # noqa: PLC0415 - as authors are told

        return torch.ones(mib * MIB, dtype=torch.uint8, device=str(device))
    return bytearray(b"x") * (mib * MIB)


def is_there(sign: str) -> bool:
    """Whether a test has put a file of that name into the first folder of the path."""
    return (Path(sys.path[0]) / sign).exists()


@model(keep_alive=600, memory="40MiB")
def first(device: Device) -> Any:
    return fill(device, 40)


@model(keep_alive=600, memory="40MiB")
def second(device: Device) -> Any:
    time.sleep(0.2)
    return fill(device, 40)


@model(keep_alive=0.3, memory="30MiB")
def brief(device: Device) -> Any:
    return fill(device, 30)


@model(keep_alive=600, memory="1MiB")
def modest(device: Device) -> Any:
    """Takes more than it says."""
    return fill(device, 20)


@model(keep_alive=600)
def unknown(device: Device) -> Any:
    """Says nothing, and grows slowly."""
    return [fill(device, 10) for _ in range(5) if time.sleep(0.08) is None]


@model(keep_alive=600)
def huge(device: Device) -> Any:
    return [fill(device, 5) for _ in range(200) if time.sleep(0.03) is None]


@model(keep_alive=600, memory="1024GiB")
def boundless(device: Device) -> Any:
    raise AssertionError("nobody loads this")


@model(keep_alive=600)
def broken(device: Device) -> Any:
    if not is_there("mended"):
        raise OSError("no weights here")
    return 1


@model(keep_alive=600)
def hanging(device: Device) -> Any:
    if not is_there("mended"):
        time.sleep(600)
    return 1


@model(keep_alive=600)
def fatal(device: Device) -> Any:
    if not is_there("mended"):
        os._exit(5)
    return 1


@model(keep_alive=FOREVER, memory="10MiB")
def always(device: Device) -> Any:
    return fill(device, 10)


@function()
def with_first(input: Ask, *, held: Any = uses(first)) -> int:
    time.sleep(input.seconds)
    return len(held)


@function()
def with_second(input: Ask, *, held: Any = uses(second)) -> int:
    time.sleep(input.seconds)
    return len(held)


@function()
def with_both(input: Ask, *, one: Any = uses(first), other: Any = uses(second)) -> int:
    return len(one) + len(other)


@function(concurrency=4)
async def beside(input: Ask, *, held: Any = uses(first)) -> int:
    """Uses it and leaves the main thread alone."""
    await asyncio.sleep(input.seconds)
    return len(held)


@function(batch=Batch(max_cost=8))
def joined(inputs: list[Ask], *, held: Any = uses(first)) -> list[int]:
    """Calls that run as one."""
    return [len(held)] * len(inputs)


@function()
def with_brief(input: Ask, *, held: Any = uses(brief)) -> int:
    return len(held)


@function()
def with_modest(input: Ask, *, held: Any = uses(modest)) -> int:
    return len(held)


@function()
def with_unknown(input: Ask, *, held: Any = uses(unknown)) -> int:
    return len(held)


@function()
def with_huge(input: Ask, *, held: Any = uses(huge)) -> int:
    return len(held)


@function()
def with_boundless(input: Ask, *, held: Any = uses(boundless)) -> int:
    return len(held)


@function()
def with_broken(input: Ask, *, held: Any = uses(broken)) -> int:
    return int(held)


@function()
def with_hanging(input: Ask, *, held: Any = uses(hanging)) -> int:
    return int(held)


@function()
def with_fatal(input: Ask, *, held: Any = uses(fatal)) -> int:
    return int(held)


@function(budget=Budget(sync=30))
def with_always(input: Ask, *, held: Any = uses(always)) -> int:
    return len(held)


@function()
def without(input: Ask) -> str:
    return input.text
