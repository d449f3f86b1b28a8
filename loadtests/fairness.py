"""What an owner with a long backlog costs another one: its waits, and its share.

    python loadtests/fairness.py [--minutes 10] [--backlog 1000] [--seconds 0.05]

Starts a site with default settings and one slot in a folder of its own. First the second owner submits one
job at a time, alone; then the same while the first owner keeps so many jobs waiting; then both keep some.
The last two take so many minutes each.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator
from datetime import datetime
from typing import Any

import psutil
from call_cost import site

from headrace.client import CallRefused, Client
from headrace.domain import FINAL

_ALONE_MINUTES = 1.0


class Backlog:
    """Keeps jobs of one owner waiting.

    Args:
        client: the owner's.
        size: how many unfinished ones are kept.
        seconds: how long each takes.
    """

    def __init__(self, client: Client, size: int, seconds: float) -> None:
        self.finished = 0
        self._client = client
        self._size = size
        self._input = {"seconds": seconds}
        self._jobs: deque[str] = deque()
        self._stop = threading.Event()
        self._full = threading.Event()
        self._thread = threading.Thread(target=self._keep)

    @contextlib.contextmanager
    def kept(self) -> Generator[None]:
        """It is full when this is entered, and is not filled up any more when it is left."""
        self._thread.start()
        self._full.wait()
        self.finished = 0
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def drop(self) -> None:
        """Cancel what is left."""
        for job_id in self._jobs:
            with contextlib.suppress(CallRefused):  # it has ended already
                self._client.cancel(job_id)

    def _keep(self) -> None:
        while not self._stop.is_set():
            while len(self._jobs) < self._size:
                self._jobs.append(self._client.submit("nap", self._input)["job_id"])
            self._full.set()
            # An owner's jobs are executed in their order.
            while self._jobs and self._client.job(self._jobs[0])["status"] in FINAL:
                self._jobs.popleft()
                self.finished += 1
            self._stop.wait(0.2)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="fairness between two owners")
    arguments.add_argument("--minutes", type=float, default=10)
    arguments.add_argument("--backlog", type=int, default=1000)
    arguments.add_argument("--seconds", type=float, default=0.05)
    options = arguments.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, seconds = f"http://127.0.0.1:{port}", options.seconds
    with (
        site(port, "nap") as (process, key),
        Client(url, key) as first,
        Client(url, other(process)) as second,
    ):
        waits = one_at_a_time(second, seconds, _ALONE_MINUTES)
        print(f"alone: {told(waits)}", flush=True)
        backlog = Backlog(first, options.backlog, seconds)
        with backlog.kept():
            waits = one_at_a_time(second, seconds, options.minutes)
            done = backlog.finished
        backlog.drop()
        print(
            f"beside {options.backlog} waiting jobs of another: {told(waits)}; of the other: {done}",
            flush=True,
        )
        both = [Backlog(client, options.backlog // 5, seconds) for client in (first, second)]
        with both[0].kept(), both[1].kept():
            both[0].finished = both[1].finished = 0
            time.sleep(options.minutes * 60)
            shares = [backlog.finished for backlog in both]
        for backlog in both:
            backlog.drop()
        print(f"both with {options.backlog // 5} waiting jobs: {shares[0]} and {shares[1]} jobs executed")


def other(site_process: psutil.Process) -> str:
    """A key of another owner."""
    command = [sys.executable, "-m", "headrace", "keys", "create", "--owner", "second"]
    done = subprocess.run(command, env=site_process.environ(), check=True, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1]


def one_at_a_time(client: Client, seconds: float, minutes: float) -> list[float]:
    """How long each job waited, from its acceptance to its start."""
    waits: list[float] = []
    ends_at = time.monotonic() + minutes * 60
    while time.monotonic() < ends_at:
        job = client.submit("nap", {"seconds": seconds}, wait=50)
        waits.append(instant(job["started_at"]) - instant(job["created_at"]))
    return waits


def instant(text: Any) -> float:
    """An instant of the ledger, in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def told(waits: list[float]) -> str:
    """The distribution of waits, in a line."""
    centiles = [centile * 1000 for centile in statistics.quantiles(waits, n=100)]
    return (
        f"{len(waits)} jobs waited p50 {centiles[49]:.0f} ms, p90 {centiles[89]:.0f} ms, "
        f"p99 {centiles[98]:.0f} ms, at most {max(waits) * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
