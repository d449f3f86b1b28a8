"""Child processes that don't outlive the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

PARENT_VARIABLE: Final = "HEADRACE_PARENT_PID"
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def die_with_parent() -> None:
    """Have the kernel end this process when the one named by `HEADRACE_PARENT_PID` ends; else do nothing.

    Call it first in a child's main. SIGTERM comes, so that the child can leave in order. It may come several
    times within milliseconds: the threads of a killed parent end one by one, and each passes the child on to
    the next. The kernel watches the thread that started the child, so a parent starts children from its main
    thread.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent.isdigit():
        return
    signal_on_parent_death(signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGTERM)


def signal_on_parent_death(number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends (Linux only)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends, instead of init (Linux only)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
