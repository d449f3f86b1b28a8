"""Whether calls that are running when their hold ends get an answer, a result, and one execution each.

    python loadtests/handover.py [--calls 5000] [--rate 100]

Starts a site with default settings in a folder of its own, and makes so many direct calls a second, with
`Prefer: wait=1`. Their durations lie evenly within 0.3 s of the instant at which the gateway hands over what
still runs: that is shortly before the hold ends, by what recent handovers took, so the middle follows the
answers until as many come as 200 as as 202. Each 202 is followed to its result. Every execution leaves a line
in a file.

A function that is known to take longer than its hold is a job at once (docs/admission.md), and is never
handed over. So the calls go to a hundred functions in turn, to each within 0.4 s: nothing is known of it
before the first of them has ended.

Ends with status 1 where the promise doesn't hold: each call is answered 200 or 202, each 202 has its result,
and there are as many executions as calls, one of each.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import uvloop
from call_cost import site
from prometheus_client.parser import text_string_to_metric_families
from straddling import FUNCTIONS, MOST_AT_ONCE

from headrace.domain import FINAL

_HOLD_S: Final = 1.0  # the least that whole seconds of `Prefer: wait` can say
_SPREAD_S: Final = 0.3
_STEP_S: Final = 0.003  # by which each answer moves the middle of the durations
_BLOCK_S: Final = 0.4  # within which one function gets its calls: none has ended by then
_TURN: Final = (math.sqrt(5) - 1) / 2  # multiples of it are spread evenly over 0 to 1
_PATIENCE_S: Final = 300.0


@dataclass
class Tally:
    """What became of the calls.

    Args:
        statuses: how often each came; 0: no answer.
        others: what else than 200 and 202 came, by status and code.
        late_s: of each 202, seconds from the end of the hold.
        right: calls whose output, from their answer or their job, is their own.
        wrong: what other ends there were.
    """

    statuses: Counter[int] = field(default_factory=Counter[int])
    others: Counter[str] = field(default_factory=Counter[str])
    late_s: list[float] = field(default_factory=list[float])
    right: int = 0
    wrong: list[str] = field(default_factory=list[str])


class Calls:
    """Makes the calls and follows them.

    Args:
        client: of the site.
        witness: the file of all executions.
    """

    def __init__(self, client: httpx2.AsyncClient, witness: Path) -> None:
        self.tally = Tally()
        self._client = client
        self._witness = str(witness)
        self._middle_s = _HOLD_S - 0.05

    async def all(self, calls: int, rate: float) -> None:
        """Make so many, so many a second, to each function as many in a row."""
        each = math.ceil(calls / FUNCTIONS)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(calls):
                block, place = divmod(number, each)
                due = began + block * each / rate + place * min(1 / rate, _BLOCK_S / each)
                await asyncio.sleep(due - time.perf_counter())
                tasks.create_task(self._call(f"stay_{block}", number))

    async def _call(self, name: str, number: int) -> None:
        seconds = self._middle_s + _SPREAD_S * (2 * (number * _TURN % 1) - 1)
        stay = {"seconds": round(seconds, 4), "witness": self._witness, "number": number}
        sent_at = time.perf_counter()
        try:
            response = await self._client.post(f"/fn/{name}", json=stay, headers={"Prefer": "wait=1"})
        except httpx2.HTTPError as error:
            self.tally.statuses[0] += 1
            self.tally.others[type(error).__name__] += 1
            return
        late_s = time.perf_counter() - sent_at - _HOLD_S
        self.tally.statuses[response.status_code] += 1
        match response.status_code:
            case 200:
                self._middle_s = min(self._middle_s + _STEP_S, _HOLD_S)
                self._judge(number, "succeeded", response.json())
            case 202:
                self._middle_s = max(self._middle_s - _STEP_S, _SPREAD_S)
                self.tally.late_s.append(late_s)
                job = await self._followed(response.json()["job_id"])
                self._judge(number, job["status"], job.get("result") or job.get("error"))
            case status:
                self.tally.others[f"{status} {response.json().get('code')}"] += 1

    async def _followed(self, job_id: str) -> dict[str, Any]:
        """The job once it is final."""
        ends_at = time.monotonic() + _PATIENCE_S
        while True:
            job = (await self._client.get(f"/jobs/{job_id}", headers={"Prefer": "wait=50"})).json()
            if job.get("status") in FINAL or time.monotonic() > ends_at:
                return job

    def _judge(self, number: int, status: str, output: Any) -> None:
        if status == "succeeded" and output == {"number": number, "attempt": 1}:
            self.tally.right += 1
        else:
            self.tally.wrong.append(f"call {number}: {status} {output}")


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="calls that are handed over")
    arguments.add_argument("--calls", type=int, default=5000)
    arguments.add_argument("--rate", type=float, default=100.0)
    options = arguments.parse_args()
    if options.calls > FUNCTIONS * MOST_AT_ONCE:
        arguments.error(f"at most {FUNCTIONS * MOST_AT_ONCE} calls")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.NamedTemporaryFile(prefix="hr-", dir="/tmp") as file, site(port, "straddling") as (_, key):
        witness = Path(file.name)
        tally, counts = uvloop.run(measure(f"http://127.0.0.1:{port}", key, witness, options))
        executions = Counter(line.split()[0] for line in witness.read_text().splitlines())
    holds = report(tally, counts, executions, options.calls)
    sys.exit(0 if holds else 1)


async def measure(
    url: str, key: str, witness: Path, options: argparse.Namespace
) -> tuple[Tally, dict[str, float]]:
    """All calls, and what the gateway has counted of them."""
    async with httpx2.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"},
        timeout=_PATIENCE_S,
        limits=httpx2.Limits(max_connections=None),
        trust_env=False,
    ) as client:
        calls = Calls(client, witness)
        await calls.all(options.calls, options.rate)
        metrics = (await client.get("/metrics")).text
    return calls.tally, counted(metrics)


def counted(metrics: str) -> dict[str, float]:
    """How handovers ended, and why calls became jobs."""
    counts: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "headrace_handovers_total":
                counts[f"handover: {sample.labels['end']}"] += sample.value
            elif sample.name == "headrace_calls_became_jobs_total":
                counts[f"job: {sample.labels['reason']}"] += sample.value
            elif sample.name in ("headrace_handover_seconds_sum", "headrace_handover_seconds_count"):
                counts[sample.name.removeprefix("headrace_")] += sample.value
    return {name: count for name, count in sorted(counts.items()) if count}


def report(tally: Tally, counts: dict[str, float], executions: Counter[str], calls: int) -> bool:
    """Print all of it; returns whether the promise holds."""
    answered, jobs = tally.statuses[200], tally.statuses[202]
    others = ", ".join(f"{count} x {what}" for what, count in tally.others.items()) or "none"
    print(f"{calls} calls: {answered} x 200 ({answered / calls:.0%}), {jobs} x 202 ({jobs / calls:.0%})")
    print(f"  other answers: {others}")
    print(f"  right results: {tally.right}; others: {'; '.join(tally.wrong[:10]) or 'none'}")
    print(f"  executions: {executions.total()}, of {len(executions)} calls")
    took, handed = counts.pop("handover_seconds_sum", 0.0), counts.pop("handover_seconds_count", 0.0)
    print("  counted by the gateway: " + ", ".join(f"{name} {count:.0f}" for name, count in counts.items()))
    if handed:
        print(f"  from asking the runner until it is recorded: {took / handed * 1000:.1f} ms on average")
    if len(tally.late_s) > 1:
        centiles = statistics.quantiles(tally.late_s, n=100, method="inclusive")
        print(
            f"  from the end of the hold to the 202: p50 {centiles[49] * 1000:+.0f} ms, "
            f"p99 {centiles[98] * 1000:+.0f} ms, max {max(tally.late_s) * 1000:+.0f} ms"
        )
    return answered + jobs == tally.right == executions.total() == len(executions) == calls


if __name__ == "__main__":
    main()
