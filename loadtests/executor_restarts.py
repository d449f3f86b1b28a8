"""How soon a hard limit frees the slot and the next call is answered, and what 1,000 kills leave behind.

    python loadtests/executor_restarts.py [--kills 50] [--model-kills 10] [--restarts 1000]

Runs a supervisor with one executor in this process, without gateway and Postgres. A call of which the body
sleeps in C with the interpreter held runs into its hard limit again and again, and another call waits for its
slot: first without a model, then with the sentence encoder of `functions/embed.py`. Then an idle executor is
killed and started again, and what this process and the fork server hold is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Measure and print."""
    import executor_site  # noqa: PLC0415 - executors import this module, too, and shouldn't that one

    arguments = argparse.ArgumentParser(description="kills and restarts of an executor")
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--model-kills", type=int, default=10)
    arguments.add_argument("--restarts", type=int, default=1000)
    options = arguments.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    sys.path[:0] = [str(Path(__file__).parent), str(Path.cwd())]
    if options.kills:
        modules = ["limit_functions"]
        asyncio.run(executor_site.measure_limits(options.kills, "no model", modules, ("ping", {})))
    if options.restarts:
        asyncio.run(executor_site.measure_leaks(options.restarts))
    if options.model_kills and (options.kills or options.restarts):
        # Its fork server imports the heavy libraries first; the other one is without.
        only = ["--kills", "0", "--restarts", "0", "--model-kills", str(options.model_kills)]
        subprocess.run([sys.executable, __file__, *only], check=True)
    elif options.model_kills:
        modules, call = ["limit_functions", "functions"], ("embed", {"texts": ["a headrace"]})
        asyncio.run(
            executor_site.measure_limits(options.model_kills, "with the sentence encoder", modules, call)
        )


if __name__ == "__main__":
    main()
