"""How soon `headrace dev` serves a saved change.

    python loadtests/dev_swaps.py [--swaps 10]

Starts `headrace dev` in a folder of its own, with one function that needs no model, and saves one version
after the other while it calls. Measured is from the save to the first answer by the new code.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headrace.client import Client

_MODULE = """
from headrace import function
from pydantic import BaseModel

class Nothing(BaseModel):
    pass

@function(examples=[{{}}])
def version(input: Nothing) -> int:
    return {number}
"""
_PATIENCE_S = 60.0
_PAUSE_S = 2.0  # until the next one a spare has been started, as when somebody thinks between two saves


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="from a save to the first answer by the new code")
    arguments.add_argument("--swaps", type=int, default=10)
    options = arguments.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)  # under root, Postgres runs as another user
        _save(folder, 0)
        with _dev(folder) as client:
            times: list[float] = []
            for number in range(1, options.swaps + 1):
                time.sleep(_PAUSE_S)
                times.append(_swap(folder, client, number))
                print(f"change {number}: served after {times[-1]:.2f} s", flush=True)
    print(
        f"from a save to the first answer by the new code: median {statistics.median(times):.2f} s, "
        f"max {max(times):.2f} s ({len(times)} changes)"
    )


def _save(folder: Path, number: int) -> None:
    draft = folder / "mine.py.new"
    draft.write_text(_MODULE.format(number=number))
    draft.replace(folder / "mine.py")


def _swap(folder: Path, client: Client, number: int) -> float:
    saved = time.monotonic()
    _save(folder, number)
    while client.call("version", {}) != number:
        assert time.monotonic() < saved + _PATIENCE_S, "the change isn't served"
        time.sleep(0.01)
    return time.monotonic() - saved


@contextmanager
def _dev(folder: Path) -> Generator[Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "dev"],
        env={**inherited, "HEADRACE_PORT": str(port), "HEADRACE_FUNCTIONS": "mine"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        else:
            raise SystemExit(said)
        key = (folder / ".headrace" / "key").read_text().strip()
        with Client(f"http://127.0.0.1:{port}", key) as client:
            yield client
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


if __name__ == "__main__":
    main()
