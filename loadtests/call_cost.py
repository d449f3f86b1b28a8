"""What one synchronous call costs: CPU time of the whole site for each call of a function that does nothing.

    python loadtests/call_cost.py [--connections 16] [--seconds 5] [--rounds 5] [--peer]

Starts a site with default settings in a folder of its own, keeps that many connections busy, and prints a
line a round and the median. CPU time over all processes of the site is the figure to compare: on a shared
machine it swings less than calls per second do. The client's own CPU isn't counted. It is wrk where that is
installed, else a plain one in Python, which takes more of the cores.

With `--peer`, three services take turns in each round, with the same client and the same body: a bare ASGI
application (`peers.anchor`), the site, and LitServe with the same function, in an environment that is made
at the first time. Where it can't be had, a line says so, and the other two are compared.
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
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import psutil
import uvloop
from peers import Load, Service, bare, end, has_wrk, litserve, wrk

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


async def drive(service: Service, connections: int, seconds: float) -> Tally:
    """Keep the connections busy for so long."""
    key = f"Authorization: Bearer {service.key}\r\n" if service.key else ""
    head = (
        f"POST {service.path} HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\n{key}"
        f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    tally = Tally()
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(
            lambda: Connection(head.encode() + BODY, tally), "127.0.0.1", service.port
        )
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
            # Of the checkout: a model is converted for the first benchmark that wants it, not for each.
            "HEADRACE_MODEL_CACHE": str(Path(__file__).parents[1] / ".headrace" / "models"),
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
            end(process, signal.SIGINT)


def cpu_seconds(root: psutil.Process) -> float:
    """CPU time of a process and of all its descendants."""
    times = [process.cpu_times() for process in [root, *root.children(recursive=True)]]
    return sum(time.user + time.system for time in times)


class Round(NamedTuple):
    """What one service did in one round.

    Args:
        cost_us: CPU time of its whole process tree, a call.
        rate: calls a second.
    """

    cost_us: float
    rate: float
    p50_ms: float
    p99_ms: float
    errors: int


def load(service: Service, connections: int, seconds: float) -> Load:
    """Keep that many connections to a service busy for so long."""
    if has_wrk():
        return wrk(service, BODY, connections, seconds)
    tally = uvloop.run(drive(service, connections, seconds))
    centiles = [second * 1000 for second in statistics.quantiles(tally.seconds, n=100)]
    return Load(len(tally.seconds), tally.errors, seconds, centiles[49], centiles[98])


def measure(service: Service, connections: int, seconds: float) -> Round:
    """One round of one service."""
    before = cpu_seconds(service.root)
    seen = load(service, connections, seconds)
    cost_us = (cpu_seconds(service.root) - before) / seen.calls * 1e6
    return Round(cost_us, seen.calls / seen.seconds, seen.p50_ms, seen.p99_ms, seen.errors)


def told(one: Round) -> str:
    """A round in words."""
    return (
        f"{one.cost_us:.0f} us of CPU a call, {one.rate:.0f} calls/s, p50 {one.p50_ms:.2f} ms, "
        f"p99 {one.p99_ms:.2f} ms, {one.errors} errors"
    )


def summary(rounds: Sequence[Sequence[Round]], names: Sequence[str]) -> list[str]:
    """The medians of services that took turns, one line each; with ratios where there are several.

    Args:
        rounds: of each round, what each service did in it.
        names: of the services; ratios are of the first, in the same round.
    """
    lines: list[str] = []
    for at, name in enumerate(names):
        own = [turn[at] for turn in rounds]
        cost_us, rate, p50_ms, p99_ms = (
            statistics.median(figures) for figures in [*zip(*own, strict=True)][:4]
        )
        line = f"{name}: {told(Round(cost_us, rate, p50_ms, p99_ms, sum(one.errors for one in own)))}"
        if at:
            ratios = [turn[0].rate / turn[at].rate for turn in rounds]
            line += (
                f"; {names[0]} makes {statistics.median(ratios):.2f} times its calls/s"
                f" ({min(ratios):.2f} to {max(ratios):.2f})"
            )
        lines.append(line)
    return lines


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="CPU time of a call that does nothing")
    arguments.add_argument("--connections", type=int, default=16)
    arguments.add_argument("--seconds", type=float, default=5.0)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--peer", action="store_true", help="in turn with LitServe and a bare application")
    options = arguments.parse_args()
    print(f"client: {'wrk' if has_wrk() else 'in Python'}, {options.connections} connections", flush=True)
    with ExitStack() as stack:
        root, key = stack.enter_context(site(port := free_port()))
        services = [Service("Headrace", port, "/fn/echo", root, key)]
        if options.peer:
            services.append(stack.enter_context(bare(free_port(), BODY)))
            try:
                services.append(stack.enter_context(litserve(free_port(), BODY)))
            except OSError as error:
                print(f"without LitServe: {error}", flush=True)
        for service in services:
            load(service, options.connections, 2)
        rounds: list[list[Round]] = []
        for number in range(1, options.rounds + 1):
            rounds.append([measure(one, options.connections, options.seconds) for one in services])
            for service, done in zip(services, rounds[-1], strict=True):
                print(f"round {number}, {service.name}: {told(done)}", flush=True)
    print("medians:")
    for line in summary(rounds, [service.name for service in services]):
        print(line)


if __name__ == "__main__":
    main()
