"""How fast jobs are accepted over HTTP, how many share a commit, and how soon a lone job is executed.

    python loadtests/submit_rate.py [--jobs 1000] [--connections 16] [--rounds 3] [--singles 200]

Starts a site with default settings in a folder of its own. A round submits so many jobs of a function that
does nothing, as fast as that many connections go, and waits until all are executed. The lone jobs come after:
each is submitted when the one before has ended, and its function says when it ran; the time until then, from
the instant at which the ledger accepted it, is all that an idle site adds to a job.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx2
import uvloop
from call_cost import BODY, site
from prometheus_client.parser import text_string_to_metric_families

from headrace.client import Client
from headrace.domain import FINAL


@dataclass
class Round:
    """The answers to one round of submissions."""

    left: int
    seconds: list[float] = field(default_factory=list[float])
    errors: int = 0

    def take(self) -> bool:
        """Whether another job is to be submitted."""
        self.left -= 1
        return self.left >= 0


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="accepting and starting jobs")
    arguments.add_argument("--jobs", type=int, default=1000)
    arguments.add_argument("--connections", type=int, default=16)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--singles", type=int, default=200)
    options = arguments.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with site(port, "echo,clock") as (_, key), Client(f"http://127.0.0.1:{port}", key) as client:
        submit_all(client, port, key, 50, options.connections)  # warms up
        for number in range(1, options.rounds + 1):
            line = submit_all(client, port, key, options.jobs, options.connections)
            print(f"round {number}: {line}", flush=True)
        print(lone_jobs(client, options.singles))


def submit_all(client: Client, port: int, key: str, jobs: int, connections: int) -> str:
    """One round, in a line."""
    before = counters(port)
    answers, began = Round(jobs), time.perf_counter()
    uvloop.run(submit(port, key, answers, connections))
    took = time.perf_counter() - began
    submits, submitted = (after - then for after, then in zip(counters(port), before, strict=True))
    while client.jobs(status="queued", limit=1).items or client.jobs(status="running", limit=1).items:
        time.sleep(0.1)
    drained = time.perf_counter() - began
    centiles = statistics.quantiles(answers.seconds, n=100)
    return (
        f"{jobs / took:.0f} jobs/s accepted, "
        f"p50 {centiles[49] * 1000:.2f} ms, p99 {centiles[98] * 1000:.2f} ms, "
        f"{submitted / submits:.1f} jobs a commit, {answers.errors} errors; "
        f"all executed after {drained:.1f} s"
    )


async def submit(port: int, key: str, answers: Round, connections: int) -> None:
    """Submit from all connections at once."""
    head = (
        f"POST /fn/echo HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Prefer: respond-async\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(connection(port, head.encode() + BODY, answers))


async def connection(port: int, request: bytes, answers: Round) -> None:
    """One connection: a job, its answer, the next."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while answers.take():
        began = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        answers.seconds.append(time.perf_counter() - began)
        answers.errors += not head.startswith(b"HTTP/1.1 202")
    writer.close()
    await writer.wait_closed()


def counters(port: int) -> tuple[float, float]:
    """How often the gateway has submitted, and how many jobs."""
    wanted = ("headrace_submits_total", "headrace_submitted_jobs_total")
    families = text_string_to_metric_families(httpx2.get(f"http://127.0.0.1:{port}/metrics").text)
    found = {sample.name: sample.value for family in families for sample in family.samples}
    return found[wanted[0]], found[wanted[1]]


def lone_jobs(client: Client, singles: int) -> str:
    """What passes before a job of an idle site is claimed, and before its function runs."""
    claimed: list[float] = []
    executed: list[float] = []
    for _ in range(singles):
        job = client.submit("clock", {})
        while job["status"] not in FINAL:
            job = client.job(job["job_id"], wait=10)
        accepted = instant(job["created_at"])
        claimed.append(instant(job["started_at"]) - accepted)
        executed.append(client.result(job["job_id"])["at"] - accepted)
    return "\n".join(
        f"accepted until {what}: p50 {statistics.median(times) * 1000:.1f} ms, "
        f"p99 {statistics.quantiles(times, n=100)[98] * 1000:.1f} ms ({singles} lone jobs)"
        for what, times in (("claimed", claimed), ("executed", executed))
    )


def instant(text: Any) -> float:
    """An instant of the ledger; to the millisecond, cut off."""
    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    main()
