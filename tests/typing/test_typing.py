"""The SDK's types are part of its interface: both checkers accept right usage and refuse wrong usage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = [str(HERE / "shapes.py"), str(HERE / "misuse.py")]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_pyright_agrees() -> None:
    done = run("pyright", "--outputjson", "--pythonpath", sys.executable, *FILES)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(FILES)
    assert report["generalDiagnostics"] == []


def test_mypy_agrees() -> None:
    done = run("mypy", *FILES)
    assert done.stdout.startswith("Success: no issues found in 2 source files"), done.stdout + done.stderr


def test_a_checker_that_accepts_misuse_is_noticed(tmp_path: Path) -> None:
    accepted = (HERE / "misuse.py").read_text().replace('Budget(hard="30")', "Budget(hard=30)")
    (tmp_path / "misuse.py").write_text(accepted)
    assert "Unnecessary" in run("pyright", "--pythonpath", sys.executable, str(tmp_path / "misuse.py")).stdout
    assert "unused-ignore" in run("mypy", str(tmp_path / "misuse.py")).stdout
