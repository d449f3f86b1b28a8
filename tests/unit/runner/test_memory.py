"""How much memory there is, how much is taken, and how a CUDA device's share is kept to."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_runner.executor import memory as executor_memory
from gpu_runner.executor.memory import DeviceMemory
from gpu_runner.executor.residency import Residency
from gpu_runner.frames import AboutModels, Loaded
from gpu_runner.residency import memory
from headrace.sdk import Device

GIB = 2**30


class Cuda:
    """The part of `torch.cuda` that is asked."""

    def __init__(self) -> None:
        self.reserved = 10 * GIB
        self.cached = 0
        self.fractions: list[tuple[float, int]] = []

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(total_memory=100 * GIB)

    def memory_reserved(self, index: int) -> int:
        return self.reserved

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        self.fractions.append((fraction, index))

    def is_initialized(self) -> bool:
        return True

    def empty_cache(self) -> None:
        self.reserved -= self.cached
        self.cached = 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return cuda


@pytest.mark.parametrize(
    ("budget", "more", "fraction"),
    [(0, 0, 0.9), (50 * GIB, 0, 0.5), (50 * GIB, 20 * GIB, 0.3), (50 * GIB, 60 * GIB, 0.5)],
)
def test_torch_refuses_a_process_more_than_the_budget_or_what_a_load_may_take(
    cuda: Cuda, budget: int, more: int, fraction: float
) -> None:
    device = DeviceMemory(Device("cuda", 1), budget)
    assert (device.is_own, device.total(), device.taken()) == (False, 100 * GIB, 10 * GIB)
    device.allow(more)
    assert cuda.fractions == [(pytest.approx(fraction), 1)]


def a_residency(
    device: Device, loads: list[Callable[[], Any]], budget: int = 0
) -> tuple[Residency, list[AboutModels]]:
    """Models that are loaded by these, named by their number, and what is told of them."""
    told: list[AboutModels] = []
    residency = Residency(device, (), told.append, budget)
    for number, load in enumerate(loads):
        residency._models[str(number)] = cast(Any, SimpleNamespace(load=lambda _, load=load: load()))
    return residency, told


def test_models_that_are_loaded_at_the_start_share_what_they_may_take(cuda: Cuda) -> None:
    def grow() -> None:
        cuda.reserved += 6 * GIB

    residency, _ = a_residency(Device("cuda", 0), [grow, grow], 50 * GIB)
    residency.load_at_start(["0", "1"], share=0.4)
    whole = pytest.approx(0.5)
    assert [fraction for fraction, _ in cuda.fractions] == [
        pytest.approx(0.3),  # 10 are taken, 20 may come
        whole,
        pytest.approx(0.3),
        whole,
    ]


def test_what_calls_have_left_is_not_taken_for_a_models_room(cuda: Cuda) -> None:
    cuda.reserved, cuda.cached = 18 * GIB, 8 * GIB

    def use_what_is_cached() -> None:
        new = max(0, 6 * GIB - cuda.cached)
        cuda.cached = max(0, cuda.cached - 6 * GIB)
        cuda.reserved += new

    residency, told = a_residency(Device("cuda", 0), [use_what_is_cached])
    residency.load("0")
    assert isinstance(told[-1], Loaded)
    assert told[-1].bytes == 6 * GIB


def test_nor_is_it_in_a_process_own_memory() -> None:
    def pieces(count: int) -> list[bytes]:
        return [bytes(60_000) + b"x" for _ in range(count)]

    residency, told = a_residency(Device("cpu"), [lambda: pieces(600)])
    left, stays = pieces(1200), pieces(1)
    del left
    residency.load("0")
    assert isinstance(told[-1], Loaded)
    assert told[-1].bytes >= 600 * 60_000 * 0.9
    assert stays


def test_on_a_cpu_it_is_the_process_own_and_torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    device = DeviceMemory(Device("cpu"))
    device.allow(1)
    assert (device.is_own, device.total()) == (True, 0)
    before = device.taken()
    held = bytearray(b"x") * (32 * 2**20)
    assert device.taken() - before >= 31 * 2**20
    assert memory.resident(os.getpid()) >= len(held)
    assert memory.resident(2**22 + 1) == 0  # nobody


PIECES = """
import resource, sys
from gpu_runner.executor.memory import give_back, keep_freed, resident

def allocate():
    return [bytearray(b"x") * 2**20 for _ in range(20)]

if "keep" in sys.argv:
    keep_freed()
freed = allocate()
at_most = resident()
del freed
allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    allocate()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
kept = resident()
give_back()
print(faults, at_most - kept, at_most - resident())
"""
"""Takes and frees 20 MiB, time after time; prints the page faults, and how much less it has before and after
it has given that back."""


def take_and_free(*options: str) -> tuple[int, int, int]:
    done = subprocess.run(
        [sys.executable, "-c", PIECES, *options], capture_output=True, text=True, check=True, timeout=60
    )
    faults, less, less_at_last = map(int, done.stdout.split())
    return faults, less, less_at_last


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this is the GNU C library's allocator")
def test_what_a_body_frees_is_kept_for_the_next_until_it_is_given_back() -> None:
    pages = 20 * 2**20 // os.sysconf("SC_PAGE_SIZE")
    faults, less, less_at_last = take_and_free("keep")
    assert faults < pages  # in 50 rounds, less than one round has
    assert less < 4 * 2**20
    assert less_at_last > 16 * 2**20
    faults, less, _ = take_and_free()
    assert faults > 25 * pages  # else the test above says nothing
    assert less > 16 * 2**20


@pytest.mark.parametrize(
    ("environment", "parameters"),
    [
        ({}, [-1, -3]),
        ({"MALLOC_TRIM_THRESHOLD_": "4096"}, [-3]),
        ({"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_ARENA_MAX": "2"}, [-1]),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=4096:glibc.malloc.mmap_threshold=8192"}, []),
        ({"GLIBC_TUNABLES": "glibc.malloc.perturb=1"}, [-1, -3]),
    ],
)
def test_what_an_operator_has_set_of_the_allocator_stays(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], parameters: list[int]
) -> None:
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    library = SimpleNamespace(mallopt=lambda parameter, _: was_set.append(parameter))
    monkeypatch.setattr(executor_memory.ctypes, "CDLL", lambda _: library)
    was_set: list[int] = []
    executor_memory.keep_freed()
    assert was_set == parameters


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this is the GNU C library's allocator")
def test_an_operator_may_have_all_returned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")
    _, less, _ = take_and_free("keep")
    assert less > 16 * 2**20


@pytest.mark.parametrize(
    ("lines", "limits", "least"),
    [
        ("0::/\n", {"memory.max": "1073741824\n"}, GIB),
        ("0::/a/b\n", {"a/memory.max": "1073741824\n", "a/b/memory.max": "max\n"}, GIB),
        ("0::/of/the/host\n", {"memory.max": "2147483648\n"}, 2 * GIB),
        ("4:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": "1073741824"}, GIB),
        ("4:cpu:/x\n", {}, 2**62),
    ],
)
def test_a_container_s_limit_counts_whichever_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, limits: dict[str, str], least: int
) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(lines)
    (proc / "meminfo").write_text("MemTotal:       8388608 kB\nMemFree: 1 kB\n")
    for name, text in limits.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    monkeypatch.setattr(memory, "_PROC", proc)
    monkeypatch.setattr(memory, "_CGROUPS", groups)
    assert min(memory._cgroup_limits()) == least
    assert memory.default_budget() == int(0.8 * min(8 * GIB, least))
