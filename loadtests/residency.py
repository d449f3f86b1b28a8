"""Whether an executor's memory stays within its budget, and where it was, while two models take turns in it.

    python loadtests/residency.py [--minutes 30] [--pause 1.0]

Runs a supervisor with one executor in this process, without gateway and Postgres, under a budget that holds
one of two models of 160 MiB. Calls alternate between them, so that each unloads the other's model and loads
its own. The executor's resident memory is sampled all the while, and in the end the kernel tells its peak.
Fails where that is over the budget, or where the last tenth of the samples is higher than the first by more
than a twentieth.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import time
from pathlib import Path

_ROOM = 1.5  # models, beside the executor
_SAMPLE_S = 0.05
_MOST_GROWTH = 1.05
_MIB = 2**20


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="memory of an executor whose models take turns")
    arguments.add_argument("--minutes", type=float, default=30.0)
    arguments.add_argument("--pause", type=float, default=1.0, help="seconds between two calls")
    options = arguments.parse_args()
    sys.path[:0] = [str(Path(__file__).parent), str(Path.cwd())]
    sys.exit(asyncio.run(measure(options.minutes * 60, options.pause)))


async def measure(seconds: float, pause: float) -> int:
    """Let calls alternate for so long; returns the exit status."""
    import executor_site  # noqa: PLC0415 - executors import this module, too, and shouldn't that one
    from model_functions import MODEL_BYTES  # noqa: PLC0415

    from gpu_runner.residency.memory import resident  # noqa: PLC0415
    from headrace.link.frames import Result  # noqa: PLC0415

    async with executor_site.serving("model_functions") as site:
        book = site.supervisor.models.book
        pid = site.executor.pid
        assert pid is not None
        before = resident(pid)
        book.budget = before + int(_ROOM * MODEL_BYTES)
        samples: list[int] = []
        settled: list[int] = []  # each time one model has just been used

        async def sample() -> None:
            while True:
                samples.append(resident(pid))
                await asyncio.sleep(_SAMPLE_S)

        sampling = asyncio.create_task(sample())
        waits: list[float] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for function in ("use_first", "use_second"):
                began = time.monotonic()
                answer = await site.send(function, {})
                assert isinstance(answer, Result), answer
                waits.append(time.monotonic() - began)
                settled.append(resident(pid))
                await asyncio.sleep(pause)
        sampling.cancel()
        loads = sum(book.loads.values())
        restarts = site.executor.restarts
        peak = max(*samples, _peak(pid))
        tenth = max(1, len(settled) // 10)
        first, last = (statistics.mean(part) / _MIB for part in (settled[:tenth], settled[-tenth:]))
        print(f"{seconds / 60:g} minutes, {len(waits)} calls, {loads} loads, {restarts} restarts")
        print(f"  until a call was answered, its load included: median {statistics.median(waits):.3f} s, "
              f"max {max(waits):.3f} s")  # fmt: skip
        print(f"  the executor alone                  {before / _MIB:8.1f} MiB")
        print(f"  budget                              {book.budget / _MIB:8.1f} MiB")
        print(f"  peak, of {len(samples):6} samples and VmHWM {peak / _MIB:8.1f} MiB")
        print(f"  with one model, first tenth         {first:8.1f} MiB")
        print(f"  with one model, last tenth          {last:8.1f} MiB", flush=True)
    return int(peak > book.budget or last > first * _MOST_GROWTH or restarts > 0)


def _peak(pid: int) -> int:
    """The most that the process has ever had in memory, as the kernel remembers."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    main()
