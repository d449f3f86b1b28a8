"""`python -m gpu_runner.spare`: a runner that has imported all but its functions, and waits for its id.

`headrace dev` keeps one, so that a change needn't wait for what doesn't change.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Wait for the id, then run under it as `python -m gpu_runner` does; returns the exit status."""
    # Executors import this module too (multiprocessing does), so what is heavy stays in here.
    from gpu_runner.runner import run_forever  # noqa: PLC0415

    if not (runner_id := sys.stdin.readline().strip()):
        return 0  # whoever would have sent it is gone
    return run_forever(runner_id)


if __name__ == "__main__":
    sys.exit(main())
