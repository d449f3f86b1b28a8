"""Functions with loaders that work, fail, or take their process with them."""

from __future__ import annotations

import os
from pathlib import Path

from executor_functions import Ask

from headrace import Device, function, model, uses

LOADS = "HEADRACE_TEST_LOADS"  # a file that counts loads of `fatal`


@model()
def good(device: Device) -> dict[str, str]:
    return {"device": str(device), "pid": str(os.getpid())}


@model()
def broken(device: Device) -> dict[str, str]:
    raise RuntimeError("no weights at caf\udce9")


@model()
def fatal(device: Device) -> dict[str, str]:
    """Ends its process at the first two loads."""
    path = Path(os.environ[LOADS])
    path.write_text(path.read_text() + "x")
    if len(path.read_text()) < 3:
        os._exit(4)
    return {}


@function()
def with_good(input: Ask, *, loaded: dict[str, str] = uses(good)) -> dict[str, str]:
    return loaded


@function()
def with_good_too(input: Ask, *, again: dict[str, str] = uses(good)) -> int:
    """Shares the model."""
    return id(again) and int(again["pid"])


@function()
def with_broken(input: Ask, *, loaded: dict[str, str] = uses(broken)) -> int:
    return 1


@function()
def plain(input: Ask) -> str:
    return input.text
