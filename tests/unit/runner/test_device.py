"""The device that an executor computes on; where torch sees a CUDA device, on that one too."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
from rig import Rig, runner

from gpu_runner.executor import device as devices
from gpu_runner.executor.device import choose
from headrace.errors import SetupError
from headrace.sdk import Device

NAMES = {"cpu": "cpu", "cuda": "cuda:0"}
"""What torch calls the device of a setting."""


@pytest.fixture
def two_of_cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch that sees two CUDA devices, and its `cuda`."""
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, __spec__=object()))
    monkeypatch.setattr(devices, "_has_nvidia_driver", lambda: True)
    return cuda


@pytest.mark.usefixtures("two_of_cuda")
@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("auto", Device("cuda", 0)),
        ("cuda", Device("cuda", 0)),
        ("cuda:1", Device("cuda", 1)),
        ("cpu", Device("cpu")),
    ],
)
def test_the_first_cuda_device_is_chosen_unless_another_is_asked_for(wanted: str, chosen: Device) -> None:
    assert choose(wanted) == chosen


@pytest.mark.usefixtures("two_of_cuda")
def test_one_that_is_not_there_is_refused() -> None:
    with pytest.raises(SetupError, match=r"^HEADRACE_DEVICE=cuda:2, but torch sees 2 CUDA devices$"):
        choose("cuda:2")


def test_without_one_auto_is_the_cpu(two_of_cuda: SimpleNamespace) -> None:
    two_of_cuda.is_available = lambda: False
    assert choose("auto") == Device("cpu")


@pytest.mark.usefixtures("two_of_cuda")
def test_without_a_driver_torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_has_nvidia_driver", lambda: False)
    assert choose("auto") == Device("cpu")


def test_without_torch_it_is_the_cpu_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert choose("auto") == Device("cpu")
    with pytest.raises(SetupError, match=r"^HEADRACE_DEVICE=cuda, but torch isn't installed$"):
        choose("cuda")


def test_models_are_on_the_device_and_no_more_calls_at_once_use_it_than_its_cap(device: str) -> None:
    pytest.importorskip("torch")

    async def scenario(rig: Rig) -> None:
        assert rig.supervisor.device == NAMES[device]
        calls = [rig.gateway.value("total", seconds=0.2) for _ in range(3)]
        told = sorted(await asyncio.gather(*calls), key=lambda one: one["began"])
        assert [(one["device"], one["total"]) for one in told] == [(NAMES[device], 8.0)] * 3
        assert all(one["ended"] <= following["began"] for one, following in pairwise(told))

    async def limited() -> None:
        cap = {"device": device, "device_cap": 1, "brief_wait": 10.0}
        async with asyncio.timeout(90), runner("device_functions", **cap) as rig:
            await scenario(rig)

    asyncio.run(limited())
