"""What one synchronous call costs: CPU time of the whole site for each call of a function that does nothing.

    python loadtests/call_cost.py [--connections 16] [--seconds 5] [--rounds 5]

Starts a site with default settings in a folder of its own, keeps that many connections busy, and prints a
line a round and the median. CPU time over all processes of the site is the figure to compare: on a shared
machine it swings less than calls per second do. The client's own CPU isn't counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
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
from typing import cast

import psutil
import uvloop

BODY = json.dumps(
    {
        "user": "u-12345",
        "text": "water leads to a turbine " * 30,
        "top_k": 5,
        "scores": [number / 7 for number in range(24)],
        "flags": {"a": True, "b": False, "c": True},
    }
).encode()


class Connection(asyncio.Protocol):
    """Sends the same request as soon as the answer to the last one is complete."""

    def __init__(self, request: bytes, tally: Tally) -> None:
        self._request = request
        self._tally = tally
        self._received = b""
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if length and len(body) >= int(length):
            self._received = b""
            self._tally.count(head.startswith(b"HTTP/1.1 200"), time.perf_counter() - self._sent_at)
            self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)


class Tally:
    """Answers of one round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.errors = 0

    def count(self, succeeded: bool, seconds: float) -> None:
        """One answer came."""
        self.seconds.append(seconds)
        self.errors += not succeeded


async def drive(port: int, key: str, connections: int, seconds: float) -> Tally:
    """Keep the connections busy for so long."""
    head = (
        f"POST /fn/echo HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    tally = Tally()
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(lambda: Connection(head.encode() + BODY, tally), "127.0.0.1", port)
        for _ in range(connections)
    ]
    await asyncio.sleep(seconds)
    for transport, _ in opened:
        transport.abort()
    return tally


@contextmanager
def site(port: int, functions: str = "echo", **settings: str) -> Generator[tuple[psutil.Process, str]]:
    """A site that serves modules of this folder, with these settings: its first process, and a key."""
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # under root, Postgres runs as another user
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        environment = {
            **inherited,
            "HEADRACE_HOME": f"{folder}/home",
            "HEADRACE_PORT": str(port),
            "HEADRACE_FUNCTIONS": functions,
            **settings,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "up"],
            env=environment,
            cwd=Path(__file__).parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "Ctrl-C" in line:
                    break
            yield psutil.Process(process.pid), Path(folder, "home", "key").read_text().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def cpu_seconds(root: psutil.Process) -> float:
    """CPU time of a process and of all its descendants."""
    times = [process.cpu_times() for process in [root, *root.children(recursive=True)]]
    return sum(time.user + time.system for time in times)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="CPU time of a call that does nothing")
    arguments.add_argument("--connections", type=int, default=16)
    arguments.add_argument("--seconds", type=float, default=5.0)
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    costs: list[float] = []
    with site(port) as (root, key):
        uvloop.run(drive(port, key, options.connections, 2))
        for number in range(1, options.rounds + 1):
            before = cpu_seconds(root)
            tally = uvloop.run(drive(port, key, options.connections, options.seconds))
            calls = len(tally.seconds)
            costs.append((cpu_seconds(root) - before) / calls * 1e6)
            centiles = statistics.quantiles(tally.seconds, n=100)
            print(
                f"round {number}: {costs[-1]:.0f} us of CPU a call, {calls / options.seconds:.0f} calls/s, "
                f"p50 {centiles[49] * 1000:.2f} ms, p99 {centiles[98] * 1000:.2f} ms, {tally.errors} errors"
            )
    print(f"median: {statistics.median(costs):.0f} us of CPU a call")


if __name__ == "__main__":
    main()
