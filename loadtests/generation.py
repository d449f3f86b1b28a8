"""How fast the platform generates text, compared with the library that does the work, called directly.

    python loadtests/generation.py [--clients 8] [--seconds 15] [--rounds 3] [--threads N]

Clients ask again as soon as their answer is complete, over HTTP, and read it as it is streamed. In turn with
that, a process of its own gives such prompts to the same continuous batching, with as many threads and no
platform around it. Each answer begins while others run, so each first token is that of a late arrival.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from call_cost import cpu_seconds, site
from generation_figures import MAX_TOKENS, Counted, prompts

from headrace.client import Client


class Figures(NamedTuple):
    """Of one round.

    Args:
        rate: tokens per second.
        per_cpu_s: tokens per second of CPU time; of a site, over all its processes.
        first_s: the seconds until each first token.
    """

    rate: float
    per_cpu_s: float
    first_s: list[float]


def through_platform(root: psutil.Process, clients: Sequence[Client], seconds: float) -> Figures:
    """Keep these clients of a site busy for so long."""
    counted, counting = Counted.of(seconds), threading.Lock()
    before = cpu_seconds(root)

    def ask_on(client: Client) -> None:
        while time.perf_counter() < counted.until:
            with counting:
                prompt = next(prompts)
            asked_at, seen = time.perf_counter(), 0
            with client.stream("generate", {"prompt": prompt, "max_tokens": MAX_TOKENS}) as stream:
                for item in stream:
                    so_far = item["tokens"] if "tokens" in item else item["usage"]["completion_tokens"]
                    with counting:
                        if not seen:
                            counted.add_first(asked_at)
                        counted.add(so_far - seen)
                    seen = so_far
                    if time.perf_counter() >= counted.until:
                        break

    threads = [threading.Thread(target=ask_on, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Figures(counted.rate, counted.all_tokens / (cpu_seconds(root) - before), counted.first_s)


@contextmanager
def alone(clients: int, threads: int) -> Generator[Callable[[float], Figures]]:
    """The process without a platform, which runs a round when it is called."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("generation_alone.py")),
        str(clients),
        str(threads),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asking, answers = process.stdin, process.stdout
        assert answers.readline() == "ready\n"

        def run(seconds: float) -> Figures:
            print(seconds, file=asking, flush=True)
            return Figures(*json.loads(answers.readline()))

        yield run


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="generated text through the platform and without it")
    arguments.add_argument("--clients", type=int, default=8)
    arguments.add_argument("--seconds", type=float, default=15.0)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = arguments.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(options.threads)
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # the other process finds functions there
    print(f"{options.threads} threads; load of the machine: {os.getloadavg()[0]:.2f}", flush=True)
    shares: list[float] = []
    cpu_shares: list[float] = []
    first_s: list[float] = []
    with (
        site(port, functions="functions.generate") as (root, key),
        alone(options.clients, options.threads) as run_alone,
    ):
        clients = [Client(f"http://127.0.0.1:{port}", key) for _ in range(options.clients)]
        began = time.perf_counter()
        clients[0].call("generate", {"prompt": next(prompts), "max_tokens": 1})
        print(f"the first answer, which loads the model: {time.perf_counter() - began:.1f} s", flush=True)
        for number in range(1, options.rounds + 1):
            plain = run_alone(options.seconds)
            served = through_platform(root, clients, options.seconds)
            shares.append(served.rate / plain.rate)
            cpu_shares.append(served.per_cpu_s / plain.per_cpu_s)
            first_s += served.first_s
            print(
                f"round {number}: {served.rate:.1f} tokens/s, {served.per_cpu_s:.1f} per CPU second, first "
                f"after {_of(served.first_s)}; without the platform {plain.rate:.1f}, {plain.per_cpu_s:.1f}, "
                f"{_of(plain.first_s)}",
                flush=True,
            )
    print(
        f"median share: {statistics.median(shares):.0%} of the tokens per second, "
        f"{statistics.median(cpu_shares):.0%} of those per CPU second; first token of a late arrival after "
        f"{_of(first_s)}"
    )


def _of(seconds: list[float]) -> str:
    if len(seconds) < 2:
        return "too few to tell"
    return (
        f"{statistics.median(seconds):.2f} s (median), {statistics.quantiles(seconds, n=20)[-1]:.2f} s (p95)"
    )


if __name__ == "__main__":
    main()
