"""Calls that are done inside their deadline, at exactly what there is capacity for and at three times that.

    python loadtests/goodput.py [--seconds 60] [--deadline 1] [--seed N] [--peer] [--report FOLDER]

The function sleeps 50 ms, in two slots. What they can do is measured first: clients that always have a call
under way. Then calls come at random instants (Poisson), at that rate and at three times that rate, for so
long each. Who isn't answered 200 within the deadline leaves, and nobody comes back. With Headrace each call
says its deadline (`Headrace-Deadline`). The instants are drawn from one seed for all systems.

With `--peer` the same is done to LitServe on two workers, twice: with its own timeout, 30 s, and with that
set to the deadline. It is installed in an environment of its own unless `--peer-python` names one that has
it.

Ends with status 1 where Headrace does less than 90 % of the measured capacity when as much is offered, or
less than 95 % of what it does then at three times that.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import plots
import uvloop
from call_cost import site
from peers import litserve_python, served
from wire import Wire

_LEAST: Final = 0.95
_LEAST_AT_CAPACITY: Final = 0.9
_OVERLOAD: Final = 3.0
_WARM_UP_S: Final = 3.0
_PATIENCE_S: Final = 60.0


@dataclass
class Phase:
    """What became of the calls of one load.

    Args:
        title: which.
        rate: calls offered each second.
        seconds: for how long.
        good: of each call that was done in time: when it came, in seconds from the beginning, and how long
            it took.
        others: what became of the others.
    """

    title: str
    rate: float
    seconds: float
    good: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    others: Counter[str] = field(default_factory=Counter[str])

    @property
    def goodput(self) -> float:
        """Calls done in time, each second."""
        return len(self.good) / self.seconds


@dataclass(frozen=True)
class System:
    """Whom the calls are made to.

    Args:
        name: its name.
        wire: to it.
        path: of the function.
        deadline: in seconds; after it a caller leaves.
        length: of one call, in seconds.
        headers: sent with each.
        seed: of the instants at which they are made.
    """

    name: str
    wire: Wire
    path: str
    deadline: float
    length: float
    headers: dict[str, str]
    seed: int = 0

    async def capacity(self, clients: int, seconds: float) -> float:
        """Calls each second, when so many clients always have one under way."""
        done = 0
        ends_at = time.monotonic() + _WARM_UP_S + seconds

        async def call() -> None:
            nonlocal done
            while time.monotonic() < ends_at:
                answer = await self.wire.request("POST", self.path, {"seconds": self.length})
                assert answer.status == 200, answer.body
                done += time.monotonic() > ends_at - seconds

        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(call())
        return done / seconds

    async def load(self, title: str, rate: float, seconds: float) -> Phase:
        """Calls at random instants."""
        phase = Phase(title, rate, seconds)
        chance = random.Random(f"{self.seed}/{title}")
        began = due = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            while (due := due + chance.expovariate(rate)) < began + seconds:
                await asyncio.sleep(due - time.monotonic())
                tasks.create_task(self._call(phase, due - began))
        return phase

    async def _call(self, phase: Phase, at: float) -> None:
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(self.deadline):
                value = {"seconds": self.length}
                answer = await self.wire.request("POST", self.path, value, self.headers)
        except TimeoutError:
            phase.others["not in time"] += 1
        except (OSError, asyncio.IncompleteReadError) as error:
            phase.others[type(error).__name__] += 1
        else:
            if answer.status == 200:
                phase.good.append((at, time.monotonic() - sent_at))
            else:
                code = answer.json().get("code", "") if answer.body else ""
                phase.others[f"{answer.status} {code}".strip()] += 1


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="calls done in time, at capacity and over it")
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--deadline", type=float, default=1.0)
    arguments.add_argument("--length", type=float, default=0.05)
    arguments.add_argument("--slots", type=int, default=2)
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments.add_argument("--peer", action="store_true", help="LitServe beside it")
    arguments.add_argument("--peer-python", type=Path, help="a Python that has LitServe")
    arguments.add_argument("--report", type=Path, help="a folder for a page and its plot")
    options = arguments.parse_args()
    phases = {"Headrace": headrace(options)}
    if options.peer or options.peer_python:
        try:
            python = options.peer_python.absolute() if options.peer_python else litserve_python()
            for timeout in (30.0, options.deadline):
                phases[f"LitServe, timeout {timeout:g} s"] = litserve(options, python, timeout)
        except OSError as error:
            print(f"without LitServe: {error}")
    about = (
        f"Each call takes {options.length * 1000:g} ms in one of {options.slots} slots, and is to be done "
        f"within {options.deadline:g} s. Each row is {options.seconds:g} s of calls at random instants "
        f"(seed {options.seed})."
    )
    table = told(phases)
    print(f"{about}\n\n{table}")
    if options.report is not None:
        write(options.report, about, table, phases)
    sys.exit(0 if holds(*phases["Headrace"]) else 1)


def holds(at_capacity: Phase, over_it: Phase) -> bool:
    """Whether enough is done in time: when what the slots can do is offered, and when more is."""
    least = _LEAST_AT_CAPACITY * at_capacity.rate
    return at_capacity.goodput >= least and over_it.goodput >= _LEAST * at_capacity.goodput


def headrace(options: argparse.Namespace) -> list[Phase]:
    """Measure a site."""
    number = free_port()
    with site(number, "slow", HEADRACE_EXECUTORS=str(options.slots)) as (_, key):
        headers = {"Headrace-Deadline": f"{options.deadline:g}"}
        wire = Wire(number, key)
        system = System("Headrace", wire, "/fn/slow", options.deadline, options.length, headers, options.seed)
        return uvloop.run(measure(system, options.slots, options.seconds))


def litserve(options: argparse.Namespace, python: Path, timeout: float) -> list[Phase]:
    """Measure LitServe."""
    number = free_port()
    command = [str(python), "litserve_server.py", str(number), str(options.slots), str(timeout)]
    with served("LitServe", command, number, "/predict", b'{"seconds": 0}'):
        wire = Wire(number)
        system = System("LitServe", wire, "/predict", options.deadline, options.length, {}, options.seed)
        return uvloop.run(measure(system, options.slots, options.seconds))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def measure(system: System, slots: int, seconds: float) -> list[Phase]:
    """What it can do, then both loads."""
    await until_answered(system)
    capacity = await system.capacity(2 * slots, min(10.0, seconds))
    phases: list[Phase] = []
    for times in (1.0, _OVERLOAD):
        phases.append(await system.load(f"{times:g}", times * capacity, seconds))
        print(
            f"{system.name}, {times:g} x {capacity:.1f} calls/s: {phases[-1].goodput:.1f}/s in time",
            flush=True,
        )
        await asyncio.sleep(2 * system.deadline)
    system.wire.close()
    return phases


async def until_answered(system: System) -> None:
    """Wait until a call is."""
    ends_at = time.monotonic() + _PATIENCE_S
    while (await system.wire.request("POST", system.path, {"seconds": 0.0})).status != 200:
        assert time.monotonic() < ends_at, f"{system.name} never answers"
        await asyncio.sleep(0.2)


def told(phases: dict[str, list[Phase]]) -> str:
    """The table."""
    lines = [
        "| system | load | offered/s | in time/s | of that at capacity | p50 | p99 | the others |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, pair in phases.items():
        for phase in pair:
            share = phase.goodput / pair[0].goodput if pair[0].good else 0.0
            others = ", ".join(f"{count} x {what}" for what, count in phase.others.most_common()) or "none"
            lines.append(
                f"| {name} | {phase.title} x capacity | {phase.rate:.1f} | {phase.goodput:.1f} | {share:.0%} "
                f"| {centiles(phase)} | {others} |"
            )
    return "\n".join(lines)


def centiles(phase: Phase) -> str:
    """p50 and p99 of the calls that were done in time."""
    if len(phase.good) < 2:
        return "- | -"
    found = statistics.quantiles([took for _, took in phase.good], n=100, method="inclusive")
    return f"{found[49] * 1000:.0f} ms | {found[98] * 1000:.0f} ms"


def write(folder: Path, about: str, table: str, phases: dict[str, list[Phase]]) -> None:
    """The page and its plot."""
    folder.mkdir(parents=True, exist_ok=True)
    series = {f"{name}, {phase.title} x": by_second(phase) for name, pair in phases.items() for phase in pair}
    plots.lines(
        folder / "goodput.svg", "Calls done in time", "seconds", "calls a second (mean of five)", series
    )
    (folder / "goodput.md").write_text(
        f"# Calls done in time under overload\n\n`make bench-goodput`. {about} What the slots can do is "
        f"measured first.\n\n{table}\n\n![Calls done in time, by when they came](goodput.svg)\n"
    )


def by_second(phase: Phase, width: int = 5) -> list[tuple[float, float]]:
    """Calls done in time each second, by when they came, over so many seconds each."""
    counts = Counter(int(at // width) for at, _ in phase.good)
    return [((number + 0.5) * width, counts[number] / width) for number in range(int(phase.seconds // width))]


if __name__ == "__main__":
    main()
