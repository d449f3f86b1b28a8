"""`python -m gpu_runner`: one runner, from its settings to its end."""

from __future__ import annotations

import sys


def main() -> int:
    """Run until SIGTERM or SIGINT; returns the exit status."""
    # Executors import this module too (multiprocessing does), so what is heavy stays in here.
    from gpu_runner.runner import run_forever  # noqa: PLC0415

    return run_forever()


if __name__ == "__main__":
    sys.exit(main())
