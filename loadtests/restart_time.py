"""How soon the job of a killed runner starts again elsewhere.

    python loadtests/restart_time.py [--kills 20]

Starts a site with two runners and default settings in a folder of its own. Each time a job says in which
process it runs, and that process' runner is killed; the job's next start says when it was. What passes in
between is the detection of the loss, the pause before a second start, and the claim.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time

import httpx2
import psutil
from call_cost import site

from headrace.client import Client

_RUNNERS = 2
_PATIENCE_S = 120.0


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description="starts after a runner's end")
    arguments.add_argument("--kills", type=int, default=20)
    options = arguments.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with site(port, "stay", HEADRACE_RUNNERS=str(_RUNNERS)) as (_, key), Client(url, key) as client:
        times: list[float] = []
        for number in range(1, options.kills + 1):
            until_ready(url)
            times.append(restart(client))
            print(f"kill {number}: started elsewhere after {times[-1]:.2f} s", flush=True)
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    print(
        f"from the kill to the next start: median {statistics.median(times):.2f} s, p90 {deciles[8]:.2f} s, "
        f"max {max(times):.2f} s ({len(times)} kills)"
    )


def restart(client: Client) -> float:
    """Seconds from the kill of the runner that runs a job to the job's next start."""
    job = client.submit("stay", {})
    runner = runner_of(pid_in(client, job["job_id"]))
    killed_at = time.time()
    runner.kill()
    job = client.job(job["job_id"], wait=50)
    assert job["status"] == "succeeded", job
    start = client.result(job["job_id"])
    assert start["attempt"] == 2
    return start["at"] - killed_at


def pid_in(client: Client, job_id: str) -> int:
    """The process in which the job runs."""
    ends_at = time.monotonic() + _PATIENCE_S
    while not (progress := client.job(job_id).get("progress")):
        assert time.monotonic() < ends_at, "the job says nothing"
        time.sleep(0.05)
    return int(progress["message"])


def runner_of(executor: int) -> psutil.Process:
    """The runner whose executor that is."""
    return next(one for one in psutil.Process(executor).parents() if "gpu_runner" in one.cmdline())


def until_ready(url: str) -> None:
    """Wait until all runners are linked."""
    ends_at = time.monotonic() + _PATIENCE_S
    while httpx2.get(f"{url}/readyz").json()["functions"].get("stay", {}).get("runners") != _RUNNERS:
        assert time.monotonic() < ends_at, "the runners don't come back"
        time.sleep(0.2)
    time.sleep(1)  # maintenance is to have seen them, as is usual when a runner dies


if __name__ == "__main__":
    main()
