from __future__ import annotations

import re

import pytest

from headrace import FOREVER, Device, function, model, uses
from headrace.errors import DeclarationError
from headrace.sdk import Model


@model(keep_alive=FOREVER, memory="400MiB")
def numbers(device: Device) -> list[str]:
    """Two numbers."""
    return [str(device), "2"]


def test_a_model_is_its_loader_and_what_a_runner_must_know():
    assert isinstance(numbers, Model)
    assert numbers.name == f"{__name__}:numbers"
    assert (numbers.keep_alive, numbers.memory) == (FOREVER, 400 * 2**20)
    assert numbers.load(Device("cuda", 1)) == ["cuda:1", "2"]
    assert numbers.load(Device()) is not numbers.load(Device())


def test_models_have_defaults():
    @model()
    def plain(device: Device) -> int:
        return 1

    assert (plain.keep_alive, plain.memory) == (FOREVER, None)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"keep_alive": -2}, "keep_alive"),
        ({"keep_alive": float("inf")}, "keep_alive"),
        ({"keep_alive": float("nan")}, "keep_alive"),
        ({"keep_alive": "5"}, "keep_alive"),
        ({"memory": "much"}, "memory"),
        ({"memory": -1}, "memory"),
        ({"memory": []}, "memory"),
    ],
)
def test_bad_options_are_refused(options, field):
    def loads(device: Device) -> int: ...

    place = re.escape(f"{__file__}:{loads.__code__.co_firstlineno}: model 'loads', {field}: ")
    with pytest.raises(DeclarationError, match=place):
        model(**options)(loads)


def test_a_model_may_be_kept_for_a_time():
    def loads(device: Device) -> int: ...

    assert model(keep_alive=300)(loads).keep_alive == 300.0
    assert model(keep_alive=0)(loads).keep_alive == 0.0


def test_bad_loaders_are_refused():
    def takes_none() -> int: ...
    def takes_two(device: Device, other: int) -> int: ...
    def by_name(*, device: Device) -> int: ...
    async def waits(device: Device) -> int: ...

    def yields(device: Device):
        yield 1

    for loader in (takes_none, takes_two, by_name, waits, yields):
        with pytest.raises(DeclarationError, match=rf"model '{loader.__name__}', loader: must"):
            model()(loader)


def test_uses_takes_models_only():
    @function()
    def double(input: int) -> int: ...

    for other in (double, test_models_have_defaults, None):
        with pytest.raises(
            DeclarationError, match=rf"^{re.escape(__file__)}:\d+: uses\(\.\.\.\): takes what @model"
        ):
            uses(other)
    with pytest.raises(DeclarationError, match=r": put @model\(\) above test_models_have_defaults$"):
        uses(test_models_have_defaults)
    assert repr(uses(numbers)) == f"uses({numbers.name})"
