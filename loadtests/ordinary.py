"""Whether ordinary requests stay fast while every slot is busy and the backlog is full.

    python loadtests/ordinary.py [--seconds 15] [--rounds 8] [--rate 20] [--nice 5] [--report FOLDER]

Starts a site with an executor for each core in a folder of its own. Three phases take turns, each so long:
*idle*; *computing*, in which every slot burns its core; *sleeping*, in which every slot sleeps. While slots
are busy, as many jobs wait as may. In all phases clients ask at random instants, so many times a second each:

- 202: a call that is to be a job; it waits in all phases, as its function's own slot is kept busy, and is
  cancelled after the phase;
- status: `GET` of a job that waits;
- refusal: a call of a function whose backlog is full, 503. It has a slot of its own, in which a job waits for
  nothing, so that its backlog is full in idle phases, too.

Instants are drawn beforehand, whatever becomes of the requests before, and a client measures from the
instant to the whole answer. Ends with status 1 where p50 or p99 of any of them is over twice that of the idle
phases, or something else was answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import socket
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import plots
import uvloop
from call_cost import site
from wire import Answer, Wire

from headrace.domain import FINAL

_PHASES: Final = ("idle", "compute", "sleep")
_BUSY: Final = {"compute": "computing", "sleep": "sleeping"}
_KINDS: Final = {"202": 202, "status": 200, "refusal": 503}
_ASYNC: Final = {"Prefer": "respond-async"}
_MOST: Final = 2.0
_PATIENCE_S: Final = 60.0
_LONG_S: Final = 600.0
_SETTLING_S: Final = 1.0
_TIMER_S: Final = 0.0015

Times = dict[tuple[str, str], list[float]]


class Clients:
    """Ask and measure.

    Args:
        wire: to the site.
        rate: how often each of them asks, each second.
        backlog: the most jobs of a function that may wait.
        slots: of the functions that share them.
    """

    def __init__(self, wire: Wire, rate: float, backlog: int, slots: int) -> None:
        self.times: Times = defaultdict(list)
        """How long each request took, in seconds, by phase and kind."""
        self.others: Counter[str] = Counter()
        """What else was answered."""
        self._wire = wire
        self._rate = rate
        self._backlog = backlog
        self._slots = slots
        self._lingering = ""
        self._accepted: list[str] = []

    async def prepare(self) -> None:
        """Fill the backlog that is full in all phases, and have all paths taken once."""
        await self._until_ready()
        functions = [*["linger"] * self._slots, *["light"] * self._slots]
        for job_id in [await self._submit(function, "sleep") for function in functions]:
            await self._until(job_id, {"running"})
        self._lingering = await self._submit("linger", "sleep")
        await self._batch("linger", "sleep", self._backlog - 1)
        await self.measure("warm", 2.0)

    async def measure(self, phase: str, seconds: float) -> None:
        """One phase."""
        async with self._busy(phase) if phase in _BUSY else contextlib.nullcontext():
            await asyncio.sleep(_SETTLING_S)
            ends_at = time.monotonic() + seconds
            async with asyncio.TaskGroup() as tasks:
                for kind in _KINDS:
                    tasks.create_task(self._ask(phase, kind, ends_at))
        while self._accepted:
            await self._wire.request("POST", f"/jobs/{self._accepted.pop()}/cancel")

    async def _ask(self, phase: str, kind: str, ends_at: float) -> None:
        due = time.monotonic()
        async with asyncio.TaskGroup() as requests:
            while (due := due + random.expovariate(self._rate)) < ends_at:
                await _until_due(due)
                requests.create_task(self._one(phase, kind, due))

    async def _one(self, phase: str, kind: str, due: float) -> None:
        answer = await self._request(kind)
        self.times[phase, kind].append(time.monotonic() - due)
        if answer.status != _KINDS[kind]:
            self.others[f"{kind}: {answer.status} {answer.body[:200]!r}"] += 1
        elif kind == "202":
            self._accepted.append(answer.json()["job_id"])

    async def _request(self, kind: str) -> Answer:
        match kind:
            case "202":
                return await self._wire.request("POST", "/fn/light", {}, _ASYNC)
            case "status":
                return await self._wire.request("GET", f"/jobs/{self._lingering}")
            case _:
                return await self._wire.request("POST", "/fn/linger", {}, _ASYNC)

    @contextlib.asynccontextmanager
    async def _busy(self, phase: str) -> AsyncGenerator[None]:
        """Every slot is busy meanwhile, and as many jobs wait as may."""
        running = [await self._submit("occupy", phase) for _ in range(self._slots)]
        for job_id in running:
            await self._until(job_id, {"running"})
        batch = await self._batch("occupy", phase, self._backlog)
        try:
            yield
        finally:
            await self._wire.request("POST", f"/batches/{batch}/cancel")
            for job_id in running:
                await self._wire.request("POST", f"/jobs/{job_id}/cancel")
            for job_id in running:
                await self._until(job_id, FINAL)

    async def _submit(self, function: str, how: str) -> str:
        value = {"how": how, "seconds": _LONG_S}
        answer = await self._wire.request("POST", f"/fn/{function}", value, _ASYNC)
        assert answer.status == 202, answer.body
        return answer.json()["job_id"]

    async def _batch(self, function: str, how: str, count: int) -> str:
        answer = await self._wire.request(
            "POST", f"/fn/{function}/batch", [{"how": how, "seconds": _LONG_S}] * count
        )
        assert answer.status == 202, answer.body
        return answer.json()["batch_id"]

    async def _until(self, job_id: str, states: frozenset[str] | set[str]) -> dict[str, Any]:
        """The job once it is in one of the states."""
        ends_at = time.monotonic() + _PATIENCE_S
        while True:
            job = (await self._wire.request("GET", f"/jobs/{job_id}")).json()
            if job["status"] in states:
                return job
            assert time.monotonic() < ends_at, f"{job} is never {' or '.join(states)}"
            await asyncio.sleep(0.05)

    async def _until_ready(self) -> None:
        ends_at = time.monotonic() + _PATIENCE_S
        while (await self._wire.request("GET", "/readyz")).status != 200:
            assert time.monotonic() < ends_at, "no runner is there"
            await asyncio.sleep(0.1)


async def _until_due(due: float) -> None:
    """Until an instant of `time.monotonic`; at the end without a timer, which may come a millisecond late."""
    await asyncio.sleep(due - time.monotonic() - _TIMER_S)
    while time.monotonic() < due:  # noqa: ASYNC110 - there is no event but the time
        await asyncio.sleep(0)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="ordinary requests while all slots are busy")
    arguments.add_argument("--seconds", type=float, default=15.0)
    arguments.add_argument("--rounds", type=int, default=8)
    arguments.add_argument("--rate", type=float, default=20.0)
    arguments.add_argument("--backlog", type=int, default=1000)
    arguments.add_argument("--nice", type=int, help="HEADRACE_EXECUTOR_NICE; the default, if not given")
    arguments.add_argument("--report", type=Path, help="a folder for a page and its plot")
    options = arguments.parse_args()
    slots = len(os.sched_getaffinity(0))
    settings = {"HEADRACE_EXECUTORS": str(slots), "HEADRACE_BACKLOG": str(options.backlog)}
    if options.nice is not None:
        settings["HEADRACE_EXECUTOR_NICE"] = str(options.nice)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with site(port, "busy_functions", **settings) as (_, key):
        clients = Clients(Wire(port, key), options.rate, options.backlog, slots)
        uvloop.run(measure(clients, options.rounds, options.seconds))
    table, holds = report(clients.times, clients.others)
    about = (
        f"{options.rounds} rounds of {len(_PHASES)} phases of {options.seconds:g} s; {slots} executors on as "
        f"many cores; {options.backlog} jobs wait."
    )
    print(f"{about}\n\n{table}")
    if options.report is not None:
        write(options.report, about, table, clients.times)
    sys.exit(0 if holds else 1)


async def measure(clients: Clients, rounds: int, seconds: float) -> None:
    """All phases."""
    await clients.prepare()
    for _ in range(rounds):
        for phase in random.sample(_PHASES, len(_PHASES)):
            await clients.measure(phase, seconds)


def report(times: Times, others: Counter[str]) -> tuple[str, bool]:
    """The table, and whether the promise holds."""
    lines = [
        "| request | slots | p50 | p99 | times idle's p50 | times idle's p99 | requests |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    holds = not others
    for kind in _KINDS:
        idle = centiles(times["idle", kind])
        lines.append(f"| {kind} | idle | {in_ms(idle)} | | | {len(times['idle', kind])} |")
        for phase, name in _BUSY.items():
            found = centiles(times[phase, kind])
            ratios = [busy / calm for busy, calm in zip(found, idle, strict=True)]
            holds = holds and max(ratios) <= _MOST
            told = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(f"| {kind} | {name} | {in_ms(found)} | {told} | {len(times[phase, kind])} |")
    lines += [f"\nOther answers: {count} x {what}" for what, count in others.items()]
    return "\n".join(lines), holds


def centiles(seconds: list[float]) -> tuple[float, float]:
    """p50 and p99."""
    found = statistics.quantiles(seconds, n=100, method="inclusive")
    return found[49], found[98]


def in_ms(pair: tuple[float, float]) -> str:
    """Both, in milliseconds."""
    return " | ".join(f"{seconds * 1000:.2f} ms" for seconds in pair)


def write(folder: Path, about: str, table: str, times: Times) -> None:
    """The page and its plot."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = [f"{kind} {centile}" for kind in _KINDS for centile in ("p50", "p99")]
    series = {
        phase: [1000 * one for kind in _KINDS for one in centiles(times[phase, kind])] for phase in _PHASES
    }
    plots.bars(folder / "ordinary.svg", "Ordinary requests", "milliseconds", groups, series)
    (folder / "ordinary.md").write_text(
        f"# Ordinary requests while all slots are busy\n\n`make bench-ordinary`. {about}\n\n{table}\n\n"
        "![Latencies by phase](ordinary.svg)\n"
    )


if __name__ == "__main__":
    main()
