"""`headrace models` and `headrace functions usage`, as their user sees them."""

from __future__ import annotations

import json
from typing import Any

import httpx2
from harness.site import eventually
from harness.up import Folder

from headrace.client import Client

FUNCTIONS = """
from headrace import Device, function, model, uses
from pydantic import BaseModel

class Text(BaseModel):
    text: str

@model(keep_alive=600, memory="40MiB")
def weights(device: Device) -> bytearray:
    return bytearray(b"x") * (40 * 2**20)

@model(keep_alive=600)
def broken(device: Device) -> bytearray:
    raise OSError("no weights here")

@function()
def weigh(input: Text, *, held: bytearray = uses(weights)) -> int:
    return len(held)

@function()
def fail(input: Text, *, held: bytearray = uses(broken)) -> int:
    return len(held)

@function()
def echo(input: Text) -> str:
    return input.text
"""


def standing(folder: Folder, model: str) -> dict[str, Any]:
    (runner,) = json.loads(folder.run("models", "--json").stdout)
    (found,) = [one for one in runner["models"] if one["model"] == f"mine:{model}"]
    return found


def shown(folder: Folder, key: str, function: str) -> Any:
    url = f"http://127.0.0.1:{folder.port}/fn/{function}"
    return httpx2.get(url, headers={"Authorization": f"Bearer {key}"}).json()


def test_models_are_loaded_and_unloaded_by_command_and_calls_are_counted(folder: Folder) -> None:
    (folder.path / "mine.py").write_text(FUNCTIONS)
    with folder.up() as up:
        up.ready()
        assert standing(folder, "weights")["state"] == "unloaded"
        loaded = folder.run("models", "load", "weigh")
        assert loaded.returncode == 0, loaded.stderr
        assert "executor 0, on cpu: 4" in loaded.stdout.splitlines()[-1]
        eventually(lambda: shown(folder, up.key, "weigh")["live"][0]["capacity"]["memory"], "it is told of")
        live = shown(folder, up.key, "weigh")
        assert (live["state"]["slots"], live["live"][0]["capacity"]["warmth"]) == (1, "warm")
        with Client(f"http://127.0.0.1:{folder.port}", up.key) as client:
            assert client.call("weigh", {"text": "x"}) == 40 * 2**20
        assert folder.run("models", "load", "weights").stdout.endswith("already\n")
        assert "mine:weights" in folder.run("models").stdout

        failed = folder.run("models", "load", "broken")
        assert failed.returncode == 1
        assert "model mine:broken could not be loaded: OSError: no weights here" in failed.stderr
        unknown = folder.run("models", "load", "fish")
        assert "there is no model or function 'fish'; models: mine:broken, mine:weights" in unknown.stderr
        assert "the function echo uses no model" in folder.run("models", "unload", "echo").stderr

        assert "is unloaded in runner" in folder.run("models", "unload", "weights").stdout
        eventually(lambda: standing(folder, "weights")["state"] == "unloaded", "it is gone")
        assert "isn't loaded" in folder.run("models", "unload", "weights").stdout
        assert up.stop() == 0
    usage = json.loads(folder.run("functions", "usage", "weigh", "--json").stdout)
    assert {(one["kind"], one["number"]) for one in usage} == {("served", 1), ("queue", 1), ("execution", 1)}
