# ruff: noqa: F401, PLC0415 - imports inside bodies are what is read here

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from headrace import Device, function, model, uses
from headrace.sdk.bytecode import heavy_imports

if TYPE_CHECKING:
    from numpy import ndarray


@cache
def helper() -> None:
    import scipy.stats


@model()
def loads(device: Device) -> ndarray:
    import numpy as np

    return np.zeros(1)


@function()
def light(input: int) -> int:
    import json
    from collections import abc

    from headrace import errors

    return input


@function()
def heavy(input: int, *, array: ndarray = uses(loads)) -> int:
    def nested() -> None:
        from sklearn.linear_model import Ridge

    helper()
    return input


def test_light_functions_have_none():
    assert heavy_imports([light]) == []


def test_bodies_loaders_nested_code_and_helpers_are_read():
    assert heavy_imports([light, heavy]) == ["numpy", "scipy", "sklearn"]


def test_relative_imports_are_the_users_own():
    namespace = {"function": function, "__name__": "package.module", "__package__": "package"}
    exec(
        "@function()\ndef f(input: int) -> int:\n    from . import other\n    from .more import x\n",
        namespace,
    )
    assert heavy_imports([namespace["f"]]) == []


def test_many_names_before_an_import_hide_nothing():
    names = "\n".join(f"    name_{i}, {i + 1000}" for i in range(600))
    namespace = {"function": function, "__name__": "m"}
    exec(f"@function()\ndef f(input: int) -> int:\n{names}\n    import torch.nn as nn\n", namespace)
    assert heavy_imports([namespace["f"]]) == ["torch"]
