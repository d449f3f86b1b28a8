"""An executor may come last: what it computes takes every core, and calls are still answered at once."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_AGAIN_S: Final = 0.12  # the kernel takes one such change from all unprivileged processes in 0.1 s
_TIMES: Final = 100


def lead_group(nice: int) -> None:
    """Begin a process group, and come after others by so much.

    Where a kernel groups processes by session for its scheduler (autogroup, as distributions have it), how
    nice one is counts in its session only, and that is the runner's. So an executor that is to come after
    gateway and Postgres too begins a session of its own, and that is made nice. Where that can't be, it stays
    in the runner's, as a session that isn't nice would get as much as the runner's: it comes last among the
    runner's processes only, and a warning says so, unless the kernel has no such groups. Call it before there
    are other threads: they and what functions start are as nice as the thread that starts them.

    Args:
        nice: by how much, 0 to 19; 0: not at all.
    """
    if not nice:
        os.setpgid(0, 0)
        return
    if not _may_be_set():
        os.setpgid(0, 0)
        os.nice(nice)
        return
    os.setsid()
    os.nice(nice)
    if not _set(nice):
        # As executors start together. It isn't worth keeping a call waiting.
        threading.Thread(target=_set_later, args=(nice,), name="priority", daemon=True).start()


def _set_later(nice: int) -> None:
    for _ in range(_TIMES):
        time.sleep(_AGAIN_S)
        if _set(nice):
            return
    log.warning(
        "the kernel was too busy to make this executor's session come last: see HEADRACE_EXECUTOR_NICE"
    )


def _may_be_set() -> bool:
    try:
        with _AUTOGROUP.open("w"):
            return True
    except FileNotFoundError:  # this kernel doesn't group by session: being nice is all that is needed
        return False
    except OSError as error:  # as where `/proc` can only be read
        log.warning("this executor comes last only among the runner's processes: %s", error)
        return False


def _set(nice: int) -> bool:
    """Make the session nice; returns whether that needn't be tried again."""
    try:
        _AUTOGROUP.write_text(str(nice))
    except BlockingIOError:
        return False
    except OSError as error:
        log.warning("this executor's session can't be made to come last: %s", error)
    return True
