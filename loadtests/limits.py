"""How soon a running body ends when it is no longer wanted, and what a long function costs a short one.

    python loadtests/limits.py [--stops 200] [--seconds 60] [--rounds 6] [--long sleep compute]

First a site with default settings: jobs are cancelled, and clients of direct calls leave, so many times for
each kind of body. What is measured ends when the body does: an exception was raised in it, or it has seen
by itself that it is to stop.

Then a site of two executors, of which one slot is reserved for the short function of 20 ms. One client calls
that again and again: alone, and while jobs of the long function, of 20 s, want more slots than there are. The
two take turns, so many rounds of seconds / rounds each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx2
from call_cost import site
from long_and_short import LONG_S, SHORT_S

from headrace.client import CallRefused, Client

_PATIENCE_S = 60.0
_BODIES = ("checks", "sleeps", "computes")


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="how soon calls end, and reserved slots")
    arguments.add_argument("--stops", type=int, default=200)
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--rounds", type=int, default=6)
    arguments.add_argument("--long", nargs="*", choices=("sleep", "compute"), default=["sleep", "compute"])
    arguments.add_argument("--short", choices=("sleep", "compute"), default="sleep")
    options = arguments.parse_args()
    if options.stops:
        measure_stops(options.stops)
    for how in options.long:
        measure_reserve(how, options.short, options.seconds, options.rounds)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ---------------------------------------------------------------------- how soon calls end


def measure_stops(stops: int) -> None:
    """Cancel jobs and leave direct calls, and print how soon their bodies ended."""
    port = free_port()
    print("what ends the call | its body | median ms | p99 ms | max ms | times")
    with (
        site(port, "goes_on") as (_, key),
        Client(f"http://127.0.0.1:{port}", key) as client,
        tempfile.TemporaryDirectory(prefix="hr-") as folder,
    ):

        def cancel(notes: Path, body: str) -> float:
            job = client.submit("goes_on", {"how": body, "path": str(notes)})
            until_noted(notes, 1)
            pause()
            at = time.monotonic()
            client.cancel(job["job_id"])
            return at

        def leave(notes: Path, body: str) -> float:
            with calling(port, key, "goes_on", {"how": body, "path": str(notes)}):
                until_noted(notes, 1)
                pause()
                return time.monotonic()

        ways: dict[str, Callable[[Path, str], float]] = {"cancel of a job": cancel, "client leaves": leave}
        for name, way in ways.items():
            for body in _BODIES:
                times: list[float] = []
                for number in range(stops):
                    notes = Path(folder, f"{name}-{body}-{number}")
                    at = way(notes, body)
                    times.append(until_noted(notes, 2)[1] - at)
                print(f"{name} | {body} | {in_ms(times)} | {stops}", flush=True)


def pause() -> None:
    """Let a moment pass, so that what is measured isn't in step with anything."""
    time.sleep(random.uniform(0.01, 0.1))


def until_noted(notes: Path, count: int) -> list[float]:
    """The instants that the body has noted, as soon as there are so many."""
    ends_at = time.monotonic() + _PATIENCE_S
    while True:
        text = notes.read_text() if notes.exists() else ""
        if text.count("\n") >= count:
            return [float(line) for line in text.splitlines()]
        assert time.monotonic() < ends_at, f"only {text!r} was noted"
        time.sleep(0.002)


@contextlib.contextmanager
def calling(port: int, key: str, function: str, value: dict[str, Any]) -> Generator[None]:
    """A direct call is on its way meanwhile; its client leaves in the end."""
    body = json.dumps(value).encode()
    head = (
        f"POST /fn/{function} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + body)
        yield


# ---------------------------------------------------------------------- a reserved slot


def measure_reserve(long: str, short: str, seconds: float, rounds: int) -> None:
    """Print how long the short function takes, alone and beside the long one."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    alone: list[float] = []
    beside: list[float] = []
    with site(port, "long_and_short", HEADRACE_EXECUTORS="2") as (_, key), Client(url, key) as client:
        until_ready(url)
        call_again_and_again(client, short, 2)
        for _ in range(rounds):
            alone += call_again_and_again(client, short, seconds / rounds)
            with saturated(client, long, seconds / rounds):
                beside += call_again_and_again(client, short, seconds / rounds)
    print(f"\nshort function ({short}, 20 ms) | median ms | p99 ms | max ms | calls")
    print(f"alone | {in_ms(alone)} | {len(alone)}")
    print(f"beside a long one ({long}) | {in_ms(beside)} | {len(beside)}")
    print(f"ratio of the p99: {centile(beside, 99) / centile(alone, 99):.2f}", flush=True)


def until_ready(url: str) -> None:
    """Wait until the runner is there."""
    ends_at = time.monotonic() + _PATIENCE_S
    while httpx2.get(f"{url}/readyz").json()["functions"].get("short", {}).get("runners") != 1:
        assert time.monotonic() < ends_at, "the runner isn't ready"
        time.sleep(0.2)


def call_again_and_again(client: Client, how: str, seconds: float) -> list[float]:
    """How long each call of the short function took, as its client sees it."""
    times: list[float] = []
    ends_at = time.monotonic() + seconds
    while (began := time.monotonic()) < ends_at:
        client.call("short", {"how": how, "seconds": SHORT_S})
        times.append(time.monotonic() - began)
    return times


@contextlib.contextmanager
def saturated(client: Client, how: str, seconds: float) -> Generator[None]:
    """Jobs of the long function run and wait meanwhile: more than are done in two slots by then."""
    wanted = 3 + 2 * int(seconds / LONG_S)
    jobs = [client.submit("long", {"how": how, "seconds": LONG_S})["job_id"] for _ in range(wanted)]
    running(client, jobs, 1)
    yield
    running(client, jobs, 1)
    for job_id in reversed(jobs):
        with contextlib.suppress(CallRefused):  # it has ended already
            client.cancel(job_id)
    running(client, jobs, 0)


def running(client: Client, jobs: list[str], count: int) -> None:
    """Wait until so many of the jobs run."""
    ends_at = time.monotonic() + _PATIENCE_S
    while sum(client.job(job_id)["status"] in {"running", "cancel_requested"} for job_id in jobs) != count:
        assert time.monotonic() < ends_at, f"never {count} of the long jobs run"
        time.sleep(0.05)


# ---------------------------------------------------------------------- figures


def centile(times: list[float], number: int) -> float:
    """A centile, in seconds."""
    return statistics.quantiles(times, n=100, method="inclusive")[number - 1]


def in_ms(times: list[float]) -> str:
    """Median, p99 and maximum, in milliseconds."""
    figures = (statistics.median(times), centile(times, 99), max(times))
    return " | ".join(f"{figure * 1000:.1f}" for figure in figures)


if __name__ == "__main__":
    main()
