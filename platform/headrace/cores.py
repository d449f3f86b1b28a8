"""How the cores of this machine are shared by executors."""

from __future__ import annotations

import os


def threads_each(executors: int) -> int:
    """The threads with which each of so many executors may compute, so that all together fit the cores."""
    return max(1, _cores() // executors)


def crowded(executors: int) -> str:
    """What to tell of so many executors on this machine; empty where each has a core."""
    cores = _cores()
    if executors <= cores:
        return ""
    return (
        f"{executors} executors on {cores} {'core' if cores == 1 else 'cores'}: functions that compute in "
        "torch or numpy get slower (two processes of two threads on two cores: 68 texts/s, "
        "of one thread: 426)"
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0))
