"""The benchmark of the built-in functions measures each of them, and tells a share below the aim."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from harness.site import environment

from functions._sentences import sentences
from functions.embed import EmbedInput
from functions.summarize import SummarizeInput

LOADTESTS = Path(__file__).resolve().parents[2] / "loadtests"
HAS_SPACY = importlib.util.find_spec("spacy") is not None


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """It, imported."""
    monkeypatch.syspath_prepend(str(LOADTESTS))
    return import_module("built_ins")


def test_its_inputs_fit_the_functions(program: Any) -> None:
    inputs = program.given()
    takes = {"embed": EmbedInput, "summarize": SummarizeInput}
    if HAS_SPACY:
        takes["extract"] = import_module("functions.extract").Texts
    for name, model in takes.items():
        assert len(inputs[name]) >= 32  # else clients would ask the same at once
        for one in inputs[name]:
            model.model_validate(one)
    assert {len(sentences(one["text"], "en")) for one in inputs["summarize"]} == {15}


def test_a_share_is_that_of_one_round(program: Any) -> None:
    rounds = [
        program.Round(program.Rate(bare, 2.0), program.Rate(served, 2.5))
        for bare, served in ((100.0, 90.0), (200.0, 160.0), (50.0, 50.0))
    ]
    found = program.Found("embed", "calls", "`encode`", rounds)

    assert found.share == 0.9
    (row,) = program.table([found])[2:]
    assert row == "| `embed` | 100 calls/s | 2.00 ms | 90 calls/s | 2.50 ms | 90% | 90%, 80%, 100% |"


@pytest.mark.parametrize(
    "name",
    [
        "embed",
        "summarize",
        pytest.param("extract", marks=pytest.mark.skipif(not HAS_SPACY, reason="optional")),
    ],
)
@pytest.mark.slow
def test_it_comes_to_an_end(tmp_path: Path, name: str) -> None:
    """How fast it was isn't asked here: the machine is shared with other tests."""
    report = tmp_path / "report.md"
    load = ["--clients", "4", "--threads", "1", "--rounds", "1", "--seconds", "3"]
    done = subprocess.run(
        [sys.executable, str(LOADTESTS / "built_ins.py"), "--only", name, *load, "--report", str(report)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    side = r"[1-9]\d* calls/s \| \d+\.\d\d ms"
    row = rf"\| `{name}` \| {side} \| {side} \| \d+% \| \d+% \|"
    assert re.search(row, report.read_text()), report.read_text()
    assert f"{name}, round 1: " in done.stdout
    assert " 0 errors; " in done.stdout
