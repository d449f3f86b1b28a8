"""What joining calls gains: `embed` over HTTP, one text a call, against its library alone in ideal batches.

    python loadtests/batching.py [--clients 32] [--seconds 8] [--rounds 3] [--threads 2]

Each round measures three things one after the other, on the same texts of 14 to 26 words:

- the library alone: one process that calls `SentenceTransformer.encode` with 256 texts at a time, in batches
  of 8, 32 and 64, of which the best counts. It is the limit: it decodes, checks and writes nothing;
- a site that serves the built-in `embed`;
- a site that serves the same body without `batch=`.

Both sites have one executor, and all three compute on the same number of threads: as many as the machine has
cores, unless `--threads` says otherwise. Clients send the next text when the last one is answered. The
machine is shared with them, and threads that compute together wait for each other, so compare figures of one
round; where others use the machine too, compare the CPU time for each text.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import psutil
import uvloop
from call_cost import Connection, Tally, cpu_seconds, site

from gpu_runner.executor.device import set_thread_variables
from headrace.cores import threads_each

_SIZES: Final = (8, 32, 64)
_AT_A_TIME: Final = 256
_WARM_UP_S: Final = 2.0
_WORDS: Final = (
    "the a river bridge city people workers closed opened rain night report council market price growth "
    "engine train child doctor school law court music old new long short bright early late"
)


def texts() -> list[str]:
    """A thousand texts of about 20 words, the same in each process."""
    words, choose = _WORDS.split(), random.Random(1)
    return [" ".join(choose.choices(words, k=choose.randint(14, 26))) for _ in range(1000)]


@dataclass(frozen=True)
class Rate:
    """How fast it went.

    Args:
        texts_per_s: over the wall clock.
        cpu_ms: CPU time for each text.
        note: whatever else is to be said.
    """

    texts_per_s: float
    cpu_ms: float
    note: str = ""

    def __str__(self) -> str:
        return f"{self.texts_per_s:.0f} texts/s, {self.cpu_ms:.2f} ms of CPU a text{self.note}"


# ---------------------------------------------------------------------- the library alone


def serve_alone(threads: int) -> None:
    """In a process of its own: at each line of input, measure for so many seconds, and print."""
    import torch  # noqa: PLC0415 - only this process computes

    from functions.embed import minilm  # noqa: PLC0415 - likewise
    from headrace import Device  # noqa: PLC0415 - likewise

    torch.set_num_threads(threads)
    encoder = cast(Any, minilm.load(Device("cpu")).library)
    torch.set_num_threads(threads)
    given = texts()[:_AT_A_TIME]
    print("ready", flush=True)
    for line in sys.stdin:
        for size in _SIZES:
            encoder.encode(given[:size], batch_size=size)
            done, began, cpu = 0, time.perf_counter(), time.process_time()
            while time.perf_counter() < began + float(line) / len(_SIZES):
                encoder.encode(given, batch_size=size)
                done += len(given)
            elapsed = time.perf_counter() - began
            print(size, done / elapsed, (time.process_time() - cpu) / done * 1000, flush=True)


class Alone:
    """The library in a process of its own, which is idle until it is asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._line() == "ready", "the library can't be loaded"

    def measure(self, seconds: float) -> Rate:
        """How fast the best batches are."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        found = [self._line().split() for _ in _SIZES]
        size, rate, cpu_ms = max(found, key=lambda one: float(one[1]))
        return Rate(float(rate), float(cpu_ms), f", in batches of {size}")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def alone(threads: int) -> Generator[Alone]:
    """The library, loaded."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--alone", str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Alone(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


# ---------------------------------------------------------------------- over HTTP


class Client(Connection):
    """Sends one text after the other."""

    def __init__(self, requests: Iterator[bytes], tally: Tally) -> None:
        super().__init__(next(requests), tally)
        self._requests = requests

    def _send(self) -> None:
        super()._send()
        self._request = next(self._requests)


async def drive(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> Tally:
    """Keep so many clients busy for so long; each begins elsewhere in the requests."""
    tally = Tally()
    loop = asyncio.get_running_loop()
    opened: list[asyncio.BaseTransport] = []
    for number in range(clients):
        first = number * len(requests) // clients
        mine = itertools.cycle([*requests[first:], *requests[:first]])
        transport, _ = await loop.create_connection(lambda mine=mine: Client(mine, tally), "127.0.0.1", port)
        opened.append(transport)
    await asyncio.sleep(seconds)
    for transport in opened:
        cast(asyncio.Transport, transport).abort()
    return tally


def request(port: int, key: str, function: str, given: object) -> bytes:
    """A call, as it is sent."""
    body = json.dumps(given).encode()
    head = (
        f"POST /fn/{function} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Served:
    """A site that serves `embed`.

    Args:
        port: where it listens.
        root: its first process.
        key: an API key.
    """

    def __init__(self, port: int, root: psutil.Process, key: str) -> None:
        self._port = port
        self._root = root
        self._requests = [request(port, key, "embed", {"texts": [text]}) for text in texts()]

    def measure(self, clients: int, seconds: float) -> Rate:
        """How fast calls are answered."""
        uvloop.run(drive(self._port, self._requests, clients, _WARM_UP_S))
        before = cpu_seconds(self._root)
        tally = uvloop.run(drive(self._port, self._requests, clients, seconds))
        cpu_s = cpu_seconds(self._root) - before
        answered = len(tally.seconds) - tally.errors
        centiles = statistics.quantiles(tally.seconds, n=100)
        note = f", p50 {centiles[49] * 1000:.0f} ms, p99 {centiles[98] * 1000:.0f} ms, {tally.errors} errors"
        return Rate(answered / seconds, cpu_s / answered * 1000, note)


@contextmanager
def served(functions: str) -> Generator[Served]:
    """A site with one executor, in which calls wait for their turn instead of being refused."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with site(port, functions, HEADRACE_BRIEF_WAIT="10", HEADRACE_DEVICE="cpu") as (root, key):
        yield Served(port, root, key)


# ---------------------------------------------------------------------- all of it


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="texts/s of joined calls, and of the library alone")
    arguments.add_argument("--clients", type=int, default=32)
    arguments.add_argument("--seconds", type=float, default=8.0)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=threads_each(1))
    arguments.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.alone:
        serve_alone(options.alone)
        return
    set_thread_variables(options.threads)  # for all three alike
    shares: list[float] = []
    gains: list[float] = []
    with ExitStack() as stack:
        library = stack.enter_context(alone(options.threads))
        joined = stack.enter_context(served("functions.embed"))
        singly = stack.enter_context(served("embed_singly"))
        for number in range(1, options.rounds + 1):
            limit = library.measure(options.seconds)
            print(f"round {number}: the library alone: {limit}", flush=True)
            with_batches = joined.measure(options.clients, options.seconds)
            print(f"round {number}: calls joined: {with_batches}", flush=True)
            without = singly.measure(options.clients, options.seconds)
            print(f"round {number}: calls singly: {without}", flush=True)
            shares.append(with_batches.texts_per_s / limit.texts_per_s)
            gains.append(with_batches.texts_per_s / without.texts_per_s)
    print(
        f"{options.clients} clients: median {statistics.median(shares):.0%} of the library alone, "
        f"{statistics.median(gains):.1f} times what calls get singly"
    )


if __name__ == "__main__":
    main()
