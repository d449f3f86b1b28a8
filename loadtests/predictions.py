"""Whether calls wait and take as long as the gateway has predicted, while the load triples and falls.

    python loadtests/predictions.py [--seconds 20] [--length 0.05] [--report FOLDER]

What the slots can do is measured first. Then calls come at random instants (Poisson): at half of that rate
for so long, at three times that, and at the half again for twice as long, in which what waits is done. Each
call takes half to one and a half times the length. Every second one asks for a job (`Prefer:
respond-async`); the others don't, and are executed directly or, without a free slot, as jobs that their
connections wait for.

Predictions are those of the gateway's access lines: `predicted_wait_ms` and `predicted_ms`, of the whole
call. They are compared with `queue_ms` and `total_ms` of the same line, or with the instants of the job
where the answer was 202. An error is *near* when it is at most 20 % of what was measured, or 50 ms; *far* at
most 60 %, or 200 ms.

Ends with status 1 unless half of the errors are near and 95 % at most far: waits and totals, of jobs and of
direct calls; and nine of ten calls have a prediction.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import plots
import uvloop
from call_cost import site
from goodput import System, until_answered
from wire import Answer, Wire

from headrace.domain import FINAL

_LOADS: Final = (
    (0.5, 1.0),
    (1.5, 1.0),
    (0.5, 2.0),
)  # of what the slots can do, and for how many times as long
_KINDS: Final = ("direct", "job")
_WHAT: Final = ("wait", "total")
_PATIENCE_S: Final = 120.0


@dataclass
class Call:
    """One call and its prediction, in seconds.

    Args:
        kind: what was asked for.
        at: when it came, from the beginning.
        job_id: its job, where it was answered 202.
        measured: its wait and its total.
        predicted: the same, as they were predicted; None: nothing was.
    """

    kind: str
    at: float
    job_id: str = ""
    measured: tuple[float, float] | None = None
    predicted: tuple[float, float] | None = None


class Load:
    """Makes the calls.

    Args:
        wire: to the site.
        length: of a call, on average, in seconds.
    """

    def __init__(self, wire: Wire, length: float) -> None:
        self.calls: dict[str, Call] = {}
        """By request id."""
        self.others: Counter[str] = Counter()
        """Other answers than 200 and 202."""
        self._wire = wire
        self._length = length

    async def all(self, capacity: float, seconds: float) -> None:
        """All of the load, until what waits is done."""
        began = due = ends = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for share, times in _LOADS:
                ends += times * seconds
                while (due := due + random.expovariate(share * capacity)) < ends:
                    await asyncio.sleep(due - time.monotonic())
                    number = len(self.calls)
                    call = self.calls[f"call-{number}"] = Call(_KINDS[number % 2], due - began)
                    tasks.create_task(self._call(f"call-{number}", call))
                due = ends

    async def _call(self, name: str, call: Call) -> None:
        value = {"seconds": round(self._length * random.uniform(0.5, 1.5), 4)}
        headers = {"X-Request-Id": name} | ({"Prefer": "respond-async"} if call.kind == "job" else {})
        answer = await self._wire.request("POST", "/fn/slow", value, headers)
        if answer.status == 202:
            call.job_id = answer.json()["job_id"]
        elif answer.status != 200:
            self.others[f"{answer.status} {answer.json().get('code')}"] += 1

    async def follow(self) -> None:
        """Read what became of the jobs."""
        for call in self.calls.values():
            if call.job_id:
                job = (await self._final(call.job_id)).json()
                if job["status"] == "succeeded":
                    created, started, finished = (
                        datetime.fromisoformat(job[name]).timestamp()
                        for name in ("created_at", "started_at", "finished_at")
                    )
                    call.measured = started - created, finished - created
                else:
                    self.others[f"job {job['status']}"] += 1

    async def _final(self, job_id: str) -> Answer:
        ends_at = time.monotonic() + _PATIENCE_S
        while True:
            answer = await self._wire.request("GET", f"/jobs/{job_id}")
            if answer.json()["status"] in FINAL:
                return answer
            assert time.monotonic() < ends_at, f"{job_id} doesn't end"
            await asyncio.sleep(0.05)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="how true predictions are")
    arguments.add_argument("--seconds", type=float, default=20.0)
    arguments.add_argument("--length", type=float, default=0.05)
    arguments.add_argument("--slots", type=int, default=2)
    arguments.add_argument("--report", type=Path, help="a folder for a page and its plot")
    options = arguments.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with site(port, "slow", HEADRACE_EXECUTORS=str(options.slots)) as (process, key):
        log = Path(process.environ()["HEADRACE_HOME"], "logs", "gateway.log")
        load = Load(Wire(port, key), options.length)
        capacity = uvloop.run(measure(load, Wire(port, key), options))
        read_lines(load.calls, log.read_text().splitlines())
    calls = list(load.calls.values())
    table, holds = report(calls)
    rates = ", ".join(
        f"{share * capacity:.0f}/s for {times * options.seconds:g} s" for share, times in _LOADS
    )
    about = f"{len(calls)} calls, {rates}; {options.slots} slots, which can do {capacity:.0f}/s."
    others = ", ".join(f"{count} x {what}" for what, count in load.others.items()) or "none"
    print(f"{about}\n\n{table}\n\nOther answers: {others}")
    if options.report is not None:
        write(options.report, f"{about} Other answers than 200 and 202: {others}.", table, calls)
    sys.exit(0 if holds and not load.others else 1)


async def measure(load: Load, wire: Wire, options: argparse.Namespace) -> float:
    """Make the calls; returns what the slots can do, in calls each second."""
    system = System("Headrace", wire, "/fn/slow", _PATIENCE_S, options.length, {})
    await until_answered(system)
    capacity = await system.capacity(2 * options.slots, min(10.0, options.seconds))
    wire.close()
    await asyncio.sleep(1)
    await load.all(capacity, options.seconds)
    await load.follow()
    return capacity


def read_lines(calls: dict[str, Call], lines: Iterable[str]) -> None:
    """Take predictions, and what was measured of calls that were answered 200, from the access lines."""
    for line in lines:
        fields: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
        call = calls.get(fields.get("request_id", ""))
        if fields.get("event") != "call" or call is None:
            continue
        if "predicted_wait_ms" in fields and "predicted_ms" in fields:
            call.predicted = fields["predicted_wait_ms"] / 1000, fields["predicted_ms"] / 1000
        if fields["status"] == 200:
            call.measured = fields["queue_ms"] / 1000, fields["total_ms"] / 1000


def report(calls: list[Call]) -> tuple[str, bool]:
    """The table, and whether the promise holds."""
    lines = [
        "| | measured p50 | measured max | error p50 | error p95 | near | at most far | leans | calls |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    holds = True
    for kind in _KINDS:
        of_kind = [call for call in calls if call.kind == kind and call.measured is not None]
        known = [call for call in of_kind if call.predicted is not None]
        holds = holds and len(known) >= 0.9 * len(of_kind) > 0
        for number, what in enumerate(_WHAT):
            pairs = [
                (call.predicted[number], call.measured[number])
                for call in known
                if call.predicted is not None and call.measured is not None
            ]
            if len(pairs) < 2:
                lines.append(f"| {kind}, {what} | - | - | - | - | - | - | - | 0 of {len(of_kind)} |")
                continue
            near, far = share(pairs, 0.2, 0.05), share(pairs, 0.6, 0.2)
            holds = holds and near >= 0.5 and far >= 0.95
            leans = statistics.mean(said - was for said, was in pairs)
            lines.append(
                f"| {kind}, {what} | {figures(pairs)} | {near:.0%} | {far:.1%} | {leans:+.3f} s "
                f"| {len(known)} of {len(of_kind)} |"
            )
    return "\n".join(lines), holds


def share(pairs: list[tuple[float, float]], part: float, least: float) -> float:
    """How many of the predictions are within that part of what was measured, or that many seconds."""
    return sum(abs(said - was) <= max(part * was, least) for said, was in pairs) / len(pairs)


def figures(pairs: list[tuple[float, float]]) -> str:
    """Median and maximum of what was measured, median and p95 of the error."""
    measured = [was for _, was in pairs]
    errors = statistics.quantiles([abs(said - was) for said, was in pairs], n=20, method="inclusive")
    found = (statistics.median(measured), max(measured), errors[9], errors[18])
    return " | ".join(f"{seconds:.3f} s" for seconds in found)


def write(folder: Path, about: str, table: str, calls: list[Call]) -> None:
    """The page and its plot."""
    folder.mkdir(parents=True, exist_ok=True)
    series: dict[str, list[tuple[float, float]]] = {}
    for kind in _KINDS:
        of_kind = [call for call in calls if call.kind == kind]
        series[f"{kind}: measured"] = by_second(of_kind, lambda call: call.measured)
        series[f"{kind}: predicted"] = by_second(of_kind, lambda call: call.predicted)
    plots.lines(
        folder / "predictions.svg", "Waits, by when a call came", "seconds", "wait, seconds (mean)", series
    )
    (folder / "predictions.md").write_text(
        f"# Predicted and measured\n\n`make bench-prediction`. {about}\n\n{table}\n\n"
        "*Near*: the error is at most 20 % of what was measured, or 50 ms; *at most far*: 60 %, or 200 ms. "
        "*Leans*: predicted less measured, on average.\n\n![Waits by time](predictions.svg)\n"
    )


def by_second(
    calls: list[Call], times: Callable[[Call], tuple[float, float] | None]
) -> list[tuple[float, float]]:
    """The mean wait of the calls of each second."""
    waits: defaultdict[int, list[float]] = defaultdict(list)
    for call in calls:
        if (found := times(call)) is not None:
            waits[int(call.at)].append(found[0])
    return [(second + 0.5, statistics.mean(those)) for second, those in sorted(waits.items())]


if __name__ == "__main__":
    main()
