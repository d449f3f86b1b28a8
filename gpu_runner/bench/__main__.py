"""`python -m gpu_runner.bench ORDER`: measures one function, as `headrace bench` asks for in JSON."""

from __future__ import annotations

import sys


def main() -> int:
    """Measure until done or Ctrl-C; returns the exit status."""
    # Executors import this module too (multiprocessing does), so what is heavy stays in here.
    from gpu_runner.bench.command import run  # noqa: PLC0415

    return run(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
