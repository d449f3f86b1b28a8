"""Whether `Retry-After` is true: callers who are refused come back when told, and are counted.

    python loadtests/places.py [--seconds 60] [--modes place,key,neither,constant] [--gateways 1,2]
        [--distributions erlang,exponential,lognormal] [--seed N] [--parallel 4] [--report FOLDER]

A run has a site of its own with a runner of four slots. Calls come by chance at three times what these can
do, for so many seconds, and then at half of it, until all of the former are accepted. Each is to be a job
(`Prefer: respond-async`) that sleeps for a time which its caller has drawn, half a second on average, and may
wait ten seconds for its start. Who is refused comes back, as `comers.py` says. All is compared with the same
calls in a queue that serves them as they come, and refuses nobody.

Runs go side by side, as they mostly sleep; those of callers who come back each second, one after the other.
Prints a table; with `--report` writes it and its plots into that folder. Where the load lasted for a minute
at least, ends with status 1 unless what is promised holds for those with a place or a key.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, cast

import uvloop
from comers import MODES, Comers
from doze import SLOTS
from first_come import DISTRIBUTIONS, arrivals, length
from places_report import Figures, Run, figures, holds, row, table_head, write_report
from places_site import fill_in, gateways, wait_for_all
from wire import Wire

from headrace.client import Client

MEAN_S: Final = 0.5
CAPACITY: Final = SLOTS / MEAN_S
"""Calls a second."""

_OVERLOAD: Final = 3.0
_AFTERWARDS: Final = 0.5
_WARM_UP: Final = 24  # executions: the runner knows by then how long they take
_PATIENCE_S: Final = 600.0
_JUDGED_S: Final = 60.0


def main() -> None:
    """Measure, print and judge."""
    options = read_options()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    plan = [
        Run(mode, distribution, gateways, f"{seed}/{distribution}/{gateways}")
        for gateways, distribution, mode in itertools.product(
            options.gateways, options.distributions, options.modes
        )
    ]
    print(f"seed {seed}; {len(plan)} runs\n\n{table_head()}", flush=True)
    gentle = [run for run in plan if run.mode != "constant"]
    found: dict[Run, Figures] = {}
    for runs, parallel in ((gentle, options.parallel), ([run for run in plan if run not in gentle], 1)):
        with ThreadPoolExecutor(parallel) as threads:
            for made in threads.map(one, runs, itertools.repeat(options.seconds)):
                print(row(made), flush=True)
                found[made.run] = made
    all_of_them = [found[run] for run in plan]
    if options.report:
        write_report(options.report, all_of_them, seed, options.seconds)
    if options.seconds >= _JUDGED_S:
        sys.exit(0 if holds(all_of_them) else 1)


def read_options() -> argparse.Namespace:
    """What the command line says."""

    def among(known: Sequence[str]) -> object:
        def parse(text: str) -> list[str]:
            chosen = text.split(",")
            if not set(chosen) <= set(known):
                raise argparse.ArgumentTypeError(f"there are {', '.join(known)}")
            return chosen

        return parse

    arguments = argparse.ArgumentParser(description="the truth of Retry-After")
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--modes", type=cast(type, among(MODES)), default=MODES)
    arguments.add_argument(
        "--gateways", type=lambda text: [int(one) for one in text.split(",")], default=[1, 2]
    )
    arguments.add_argument("--distributions", type=cast(type, among(DISTRIBUTIONS)), default=DISTRIBUTIONS)
    arguments.add_argument("--seed", type=int)
    arguments.add_argument("--parallel", type=int, default=4)
    arguments.add_argument("--report", type=Path)
    return arguments.parse_args()


def one(run: Run, seconds: float) -> Figures:
    """A run on a site of its own."""
    chance = random.Random(run.seed)
    with (
        gateways(run.gateways, "doze") as (ports, key),
        Client(f"http://127.0.0.1:{ports[0]}", key) as client,
    ):
        for _ in range(_WARM_UP // SLOTS):
            for _ in range(SLOTS):
                client.submit("doze", {"seconds": length(run.distribution, MEAN_S, chance)})
            wait_for_all(client)
        comers = uvloop.run(_come(run, seconds, ports, key))
        wait_for_all(client)
        fill_in(client, comers.stories, comers.began_at)
    return figures(run, comers.stories, SLOTS, CAPACITY, seconds)


async def _come(run: Run, seconds: float, ports: Sequence[int], key: str) -> Comers:
    phases = [(_OVERLOAD * CAPACITY, seconds), (_AFTERWARDS * CAPACITY, math.inf)]
    calls = arrivals(run.distribution, MEAN_S, phases, random.Random(run.seed))
    wires = [Wire(port, key) for port in ports]
    comers = Comers(wires, run.mode, _PATIENCE_S)
    try:
        await comers.all(calls, seconds)
    finally:
        for wire in wires:
            wire.close()
    return comers


if __name__ == "__main__":
    main()
