"""What a new executor does first with its descriptors: leave the fork server alone, and open its own."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
from multiprocessing import forkserver
from typing import Any

from gpu_runner.frames import DUMP, STACKS


def leave_fork_server() -> None:
    """Close the executor's end of the pipe by which the fork server learns that nobody needs it any more.

    Whoever writes to that ends the fork server, and with it every executor; a body may write to all that it
    finds open. What `multiprocessing` does in a body starts a fork server of its own, if it needs one.
    """
    # Nothing public names that descriptor.
    server: Any = forkserver._forkserver  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    alive, server._forkserver_alive_fd = server._forkserver_alive_fd, None  # noqa: SLF001
    if alive is not None:
        with contextlib.suppress(OSError):
            os.close(alive)


def open_stacks() -> int:
    """Have `DUMP` write the stacks of all threads into a file in memory; returns its descriptor, or -1."""
    try:
        stacks = os.memfd_create(STACKS)
    except OSError:
        return -1
    signal.signal(DUMP, signal.SIG_IGN)  # what is left when a body takes the handler off; else it would end
    fcntl.fcntl(stacks, fcntl.F_SETFL, os.O_APPEND)
    faulthandler.register(DUMP, file=stacks, all_threads=True, chain=False)
    return stacks
