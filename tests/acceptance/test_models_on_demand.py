"""Models that aren't there when their functions are called: loaded, unloaded, displaced, or not to be had."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.postgres import Clones
from harness.problem import problem
from harness.site import Site, answered, eventually, site

MIB = 2**20
BUDGET = 330
"""For an executor of some 60 MiB, and one model of 150; two are too many."""

FUNCTIONS = """
import time
from collections import Counter
from pathlib import Path

from headrace import Budget, Device, function, model, uses
from pydantic import BaseModel

LOADS = Counter()
LONG = Budget(sync=30, soft=40, hard=60)

class Ask(BaseModel):
    until: str = ""

def load(name):
    LOADS[name] += 1
    return bytearray(b"x") * (150 * 2**20)

def use(name, held, ask):
    while ask.until and not Path(ask.until).exists():
        time.sleep(0.01)
    return [len(held), LOADS[name]]

@model(keep_alive=0.2, memory="150MiB")
def brief(device: Device) -> bytearray:
    return load("brief")

@model(keep_alive=600, memory="150MiB")
def first(device: Device) -> bytearray:
    return load("first")

@model(keep_alive=600, memory="150MiB")
def second(device: Device) -> bytearray:
    return load("second")

@model(keep_alive=600)
def broken(device: Device) -> bytearray:
    raise OSError("no weights here")

@function(budget=LONG)
def use_brief(input: Ask, *, held: bytearray = uses(brief)) -> list[int]:
    return use("brief", held, input)

@function(budget=LONG)
def use_first(input: Ask, *, held: bytearray = uses(first)) -> list[int]:
    return use("first", held, input)

@function(budget=LONG)
def use_second(input: Ask, *, held: bytearray = uses(second)) -> list[int]:
    return use("second", held, input)

@function(budget=LONG)
def use_broken(input: Ask, *, held: bytearray = uses(broken)) -> list[int]:
    return use("broken", held, input)
"""


@pytest.fixture(scope="module")
def housing(clones: Clones) -> Iterator[Site]:
    """A site whose only executor has room for one of its models."""
    with clones.migrated() as url, site(url, runners=0) as running:
        running.write_module("housed", FUNCTIONS)
        running.start_runner(HEADRACE_FUNCTIONS="housed", HEADRACE_MEMORY=f"{BUDGET}MiB")
        running.wait_ready()
        yield running


def used(housing: Site, name: str, **ask: str) -> list[int]:
    """What a call answers: the bytes of the model, and which load of it that was."""
    response = housing.call(f"use_{name}", ask)
    assert response.status_code == 200, response.text
    return response.json()


def models(housing: Site) -> dict[str, dict[str, Any]]:
    """By name, as `headrace models` shows them."""
    command = [sys.executable, "-m", "headrace", "models", "--json"]
    shown = subprocess.run(command, env=housing.environment(), capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    (runner,) = json.loads(shown.stdout)
    return {one["model"].removeprefix("housed:"): one for one in runner["models"]}


def counted(housing: Site, name: str, model: str) -> float:
    """What the runner tells Prometheus of a model."""
    return housing.metric(housing["runner"], f"headrace_runner_model_{name}", model=f"housed:{model}")


def test_a_model_is_loaded_for_a_call_unloaded_when_idle_and_loaded_again(
    housing: Site, tmp_path: Path
) -> None:
    sign = tmp_path / "enough"
    loads = counted(housing, "load_seconds_count", "brief")
    unloads = counted(housing, "unloads_total", "brief")
    assert counted(housing, "loaded", "brief") == 0
    with housing.calling(("use_brief", {"until": str(sign)})) as (call,):
        shown = eventually(
            lambda: one if (one := models(housing)["brief"])["in_use"] else None, "it is shown in use"
        )
        sign.touch()
    assert (shown["state"], shown["executor"], shown["in_use"]) == ("loaded", 0, 1)
    assert 140 * MIB < shown["size"] < 160 * MIB
    assert call.result().json() == [150 * MIB, loads + 1]

    eventually(lambda: models(housing)["brief"]["state"] == "unloaded", "it is unloaded when idle")
    assert counted(housing, "loaded", "brief") == 0
    assert counted(housing, "unloads_total", "brief") == unloads + 1
    assert used(housing, "brief") == [150 * MIB, loads + 2]
    assert counted(housing, "load_seconds_count", "brief") == loads + 2


def test_a_model_without_room_takes_the_place_of_the_one_that_has_it(housing: Site) -> None:
    runner = housing["runner"]
    pids = [one.pid for one in runner.descendants()]
    assert used(housing, "first")[0] == 150 * MIB
    assert counted(housing, "loaded", "first") == 1
    before = used(housing, "first")[1]
    assert used(housing, "second")[0] == 150 * MIB
    assert (counted(housing, "loaded", "first"), counted(housing, "loaded", "second")) == (0, 1)
    shown = eventually(
        lambda: one if (one := models(housing))["second"]["state"] == "loaded" else None, "it is shown"
    )
    assert shown["first"]["state"] == "unloaded"
    memory = {
        name: housing.metric(runner, f"headrace_runner_memory_{name}_bytes", device="cpu")
        for name in ("budget", "used")
    }
    assert memory["budget"] == BUDGET * MIB
    assert 150 * MIB < memory["used"] <= BUDGET * MIB
    assert used(housing, "first")[1] == before + 1
    assert [one.pid for one in runner.descendants()] == pids  # nothing was killed for it


def test_a_loader_that_raises_degrades_its_function_and_says_which_and_why(housing: Site) -> None:
    document = problem(housing.call("use_broken", {}), 503, "function-degraded")
    assert "use_broken" in document["detail"]
    assert "weights" not in str(document)  # messages of exceptions are for operators
    assert counted(housing, "failures_total", "broken") >= 1

    state = answered(lambda: housing.get("/fn/use_broken"), 200).json()["state"]
    assert state["degraded"] == ["model housed:broken could not be loaded: OSError: no weights here"]
    assert (state["runners"], state["slots"]) == (0, 0)
    failed = eventually(
        lambda: one if (one := models(housing)["broken"])["state"] == "failed" else None, "it is shown"
    )
    assert "OSError: no weights here" in failed["reason"]
    again = problem(housing.call("use_broken", {}), 503, "function-degraded")
    assert again["detail"] == document["detail"]
    assert used(housing, "first")[0] == 150 * MIB
