"""Runners of several pools behind one gateway: who serves what, and what is seen of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from harness.postgres import Clones
from harness.problem import problem
from harness.site import START_S, Site, answered, environment, eventually, site

from headrace.cli import commands
from headrace.errors import SettingsError

# Which process loads which model is left in a file.
SHOP = """\
import os
from pathlib import Path
from pydantic import BaseModel
from headrace import Device, function, model, uses

class Nothing(BaseModel):
    pass

@model()
def small(device: Device) -> str:
    with Path("loaded").open("a") as file:
        file.write(f"small {os.getpid()}\\n")
    return "small"

@model()
def large(device: Device) -> str:
    with Path("loaded").open("a") as file:
        file.write(f"large {os.getpid()}\\n")
    return "large"

@function()
def plain(input: Nothing, *, held: str = uses(small)) -> int:
    return os.getpid()

@function(pool="gpu", reserve=1)
def heavy(input: Nothing, *, held: str = uses(large)) -> int:
    return os.getpid()

@function(pool="zone=a,gpu=h200")
def choosy(input: Nothing) -> int:
    return os.getpid()
"""
POOLS = {
    "plain": {"HEADRACE_LABELS": "gpu=b200"},
    "gpu": {"HEADRACE_POOL": "gpu", "HEADRACE_LABELS": "zone=a,gpu=h200", "HEADRACE_EXECUTORS": "2"},
}


@pytest.fixture(scope="module")
def served(clones: Clones) -> Iterator[Site]:
    with clones.migrated() as url, site(url, functions="shop", runners=0) as running:
        running.write_module("shop", SHOP)
        for name, settings in POOLS.items():
            running.start_runner(name, **settings)
        names = {"plain", "heavy", "choosy"}
        eventually(lambda: ready(running) == names, "each function has its runner", within=START_S)
        yield running


def ready(served: Site) -> set[str]:
    """The functions that can be executed."""
    for process in served.processes:
        assert process.may_end or not process.has_ended(), process.output()
    states = served.client.get("/readyz").json()["functions"]
    return {name for name, state in states.items() if state["runners"]}


def headrace(served: Site, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        env=served.environment(**settings),
        cwd=served.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def executors(served: Site, name: str) -> set[int]:
    return {process.pid for process in served[name].descendants()}


def test_calls_and_jobs_are_executed_by_runners_of_the_pool(served: Site) -> None:
    for function, runner in (("plain", "plain"), ("heavy", "gpu"), ("choosy", "gpu")):
        assert served.call(function, {}).json() in executors(served, runner)
        done = served.final(served.submit(function, {}))
        assert done["result"] in executors(served, runner)


def test_functions_of_other_pools_are_left_out_with_their_models(served: Site) -> None:
    loaded = [line.split() for line in (served.folder / "loaded").read_text().splitlines()]
    for runner, model in (("plain", "small"), ("gpu", "large")):
        assert {name for name, pid in loaded if int(pid) in executors(served, runner)} == {model}
    (left_out,) = served["plain"].lines("not served here, ")
    assert left_out["event"] == (
        "not served here, with pool default, labels gpu=b200: heavy asks for pool gpu; choosy asks for "
        "labels gpu=h200,zone=a"
    )


def test_what_a_function_asks_for_is_shown(served: Site) -> None:
    heavy, choosy = served.get("/fn/heavy").json(), served.get("/fn/choosy").json()
    assert (heavy["pool"], heavy["reserve"], heavy["state"]["runners"]) == ("gpu", 1, 1)
    assert (choosy["pool"], choosy["reserve"]) == ("gpu=h200,zone=a", 0)
    extension = served.get("/openapi.json").json()["paths"]["/fn/heavy"]["post"]["x-headrace"]
    assert (extension["pool"], extension["reserve"]) == ("gpu", 1)
    listed = {line.split()[0]: line.split() for line in headrace(served, "functions").stdout.splitlines()}
    assert listed["choosy"][1:4] == ["served", "1", "gpu=h200,zone=a"]


def test_runners_are_shown_with_pool_labels_and_executors(served: Site) -> None:
    def shown() -> dict[str, Any] | None:
        document = json.loads(headrace(served, "status", "--json").stdout)
        runners = {runner["pool"]: runner for runner in document["runners"]}
        return runners if all(one["capacity"] for one in runners.values()) else None

    runners = eventually(shown, "both have sent a heartbeat")
    assert runners.keys() == {"default", "gpu"}
    assert runners["gpu"]["labels"] == {"gpu": "h200", "zone": "a"}
    assert (runners["gpu"]["capacity"]["executors"], runners["gpu"]["capacity"]["degraded"]) == (2, {})
    assert runners["gpu"]["functions"] == ["choosy", "heavy"]
    lines = [line.split() for line in headrace(served, "status").stdout.splitlines()]
    head = next(line for line in lines if line[:1] == ["RUNNER"])
    (row,) = [dict(zip(head, line, strict=False)) for line in lines if "gpu=h200,zone=a" in line]
    assert [row[name] for name in ("POOL", "STATE", "EXECUTORS", "LOAD")] == ["gpu", "serves", "2", "idle"]


def test_a_function_whose_pool_has_no_runner_is_refused_and_says_its_pool(served: Site) -> None:
    served.write_module("far", SHOP.replace("def plain", "def distant").replace('pool="gpu"', 'pool="far"'))
    far = {"HEADRACE_POOL": "far", "HEADRACE_FUNCTIONS": "far", "HEADRACE_EXECUTORS": "1"}
    runner = served.start_runner("far", **far)
    answered(lambda: served.call("heavy", {}), 200)
    eventually(lambda: served.get("/fn/heavy").json()["pool"] == "far", "the newest declaration counts")
    assert runner.stop() == 0
    assert served["gpu"].stop() == 0

    answered(lambda: served.call("heavy", {}), 503)
    assert "of pool far" in problem(served.call("heavy", {}), 503, "no-runner")["detail"]
    state = served.get("/fn/heavy").json()
    assert (state["pool"], state["state"]["runners"]) == ("far", 0)
    assert served.call("plain", {}).status_code == 200


def test_a_runner_that_is_started_wrongly_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "runner", "--pool", "*"],
        env=environment(
            HEADRACE_FUNCTIONS="shop", HEADRACE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none"
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "heavy reserves 1 of the 1 slot that choosy, heavy and plain share: set HEADRACE_" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--pool", "a b"], "HEADRACE_POOL=a b: allowed is * for every pool, empty, or a name"),
        (["--label", "zone"], "HEADRACE_LABELS=zone: allowed is key=value"),
        (["--label", "zone=a", "--label", "zone=b"], "HEADRACE_LABELS=zone=a,zone=b: allowed is key=value"),
        (["--executors", "0"], "HEADRACE_EXECUTORS=0: allowed is a whole number from 1 to 64"),
        (["--drain-seconds", "-1"], "HEADRACE_DRAIN_SECONDS=-1.0: allowed is seconds from 0 to 3600"),
    ],
)
def test_what_is_written_wrongly_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it starts"))
    done = CliRunner().invoke(commands, ["runner", *arguments], env={"HEADRACE_FUNCTIONS": "shop"})
    assert isinstance(done.exception, SettingsError)
    assert str(done.exception).startswith(says)
