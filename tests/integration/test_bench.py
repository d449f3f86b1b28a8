"""`headrace bench` in real executors, as its user sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FUNCTIONS = """
import logging
import time
from headrace import function, model, uses
from headrace.sdk import Batch, Call, Cost

@function(examples=["abc"], cost=Cost.chars(""), batch=Batch(max_cost=6))
def joined(inputs: list[str], *, calls: list[Call]) -> list[str]:
    time.sleep(0.002)
    logging.getLogger("mine").info("not for the terminal")
    if len(inputs) == 8:
        logging.getLogger("mine").warning("eight of them")
    return inputs

@function(examples=[1])
def fails(input: int) -> int:
    raise ValueError("of mine")

@function(examples=[1])
def ends(input: int) -> int:
    import os
    os._exit(3)

@model()
def gone(device):
    raise OSError("no such weights")

@function(examples=[1])
def broken(input: int, *, it: object = uses(gone)) -> int:
    return input
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bench")
    (made / "mine.py").write_text(FUNCTIONS)
    return made


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace", "bench", *arguments]


def environment(folder: Path) -> dict[str, str]:
    # What a test of this process has left for its fork server would end the command early.
    kept = {name: value for name, value in os.environ.items() if not name.lstrip("_").startswith("HEADRACE_")}
    kept.pop("COVERAGE_PROCESS_START", None)
    return {
        **kept,
        "HEADRACE_FUNCTIONS": "mine",
        "HEADRACE_HOME": str(folder / "home"),
        "HEADRACE_DEVICE": "cpu",
    }


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_function_is_measured_and_advice_is_given(folder: Path) -> None:
    file = folder / "figures.json"
    options = ["--seconds", "0.05s", "--costs", "3,30", "--executors", "1,2", "--json", str(file)]
    done = bench(folder, "joined", *options)
    assert (done.returncode, done.stdout[:14]) == (0, "joined on cpu,"), done.stderr
    assert "executors: 2, threads of each: " in done.stderr
    assert re.match(r" *0\.\d s  about 1 second: 2 costs, 4 sizes of joined calls, 2 numbers", done.stderr)
    assert "\nwarning: eight of them\n" in done.stderr
    assert "not for the terminal" not in done.stderr
    assert "{" not in done.stderr  # no JSON
    figures = json.loads(file.read_bytes())
    assert figures["is_whole"]
    assert [one["cost"] for one in figures["by_cost"]] == [3, 30]
    assert all(one["calls"] >= 1 and one["median_s"] >= 0.002 for one in figures["by_cost"])
    assert [one["calls"] for one in figures["joined"]] == [1, 2, 4, 8]  # up to four times max_cost
    assert [one["executors"] for one in figures["by_executors"]] == [1, 2]
    assert figures["by_executors"][0]["calls_per_s"] > 0
    assert 0 < figures["resident"] <= figures["peak"]
    assert "Batch(max_cost=" in done.stdout
    assert all(f"  - {sentence}\n" in done.stdout for sentence in figures["advice"])
    assert not (folder / "home").exists()  # no Postgres is started


def test_ctrl_c_ends_it_with_what_was_measured(folder: Path) -> None:
    with subprocess.Popen(
        command("joined", "--seconds", "30s", "--costs", "3"),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while "calls of cost" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said, more = process.communicate(timeout=30)
    assert process.returncode == 130
    missing = "time of a call by its cost, joined calls, several executors"
    assert said.startswith(f"INTERRUPTED before the end; not measured, or in part only: {missing}\n")
    assert "max_cost=" not in said
    assert "Traceback" not in more


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["joint"],
            "there is no function 'joint'; there are broken, ends, fails, joined; did you mean",
        ),
        (["fails"], "fails failed: function-failed"),
        (["broken"], "broken is degraded: model mine:gone could not be loaded: OSError: no such weights"),
        (["ends"], "an executor ended while it ran ends"),
    ],
)
def test_what_stops_it_is_one_line(folder: Path, arguments: list[str], why: str) -> None:
    done = bench(folder, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"headrace: {why}" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("headrace: ")


def test_numbers_that_are_none_are_wrong_usage(folder: Path) -> None:
    done = bench(folder, "joined", "--executors", "1,x")
    assert done.returncode == 2
    assert "isn't whole numbers" in done.stderr
