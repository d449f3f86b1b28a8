"""Imported once by the fork server, so that executors share the pages of the heavy libraries.

The names come in the environment: the fork server imports modules, it takes no arguments. A library that
can't be imported here fails again, with its message, in the loader that needs it.

When the runner is killed, the fork server first ends all that stems from it.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import signal
import time
import warnings

from pydantic import BaseModel

from gpu_runner.warden import descendants, kill, processes
from headrace.process import adopt_orphans, signal_on_parent_death

VARIABLE = "_HEADRACE_PRELOAD"
_LEFT_ALONE = signal.SIGRTMIN + 9
_GIVE_UP_S = 5.0  # on what no signal ends
_AGAIN_S = 0.003


for _name in ("headrace.sdk.contract", "headrace.sdk.schemas"):  # what any declaration needs
    importlib.import_module(_name)


class Warm(BaseModel):
    """The first model of a process takes 150 ms longer than others: this one is made before the fork."""

    number: int


def _leave(server: int) -> None:
    """Kill all descendants and end; the runner is gone."""
    if os.getpid() != server:  # an executor has the handler, too
        return
    ends_at = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < ends_at:
        found = processes()
        if not kill(found, descendants(found, {server})):
            break
        time.sleep(_AGAIN_S)
    os._exit(0)


if VARIABLE in os.environ:
    # The fork server's own way, a pipe that ends, leaves its children behind. While it imports, it has none,
    # and runs no handler.
    signal_on_parent_death(signal.SIGKILL)
    adopt_orphans()
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")  # an orphan has ended

for _name in filter(None, os.environ.get(VARIABLE, "").split(",")):
    try:
        importlib.import_module(_name)
    except Exception as error:
        logging.getLogger(__name__).info("could not preload %s: %s", _name, type(error).__name__)

if VARIABLE in os.environ:
    _server = os.getpid()
    atexit.register(_leave, _server)  # its own way is sooner at times
    signal.signal(_LEFT_ALONE, lambda _number, _frame: _leave(_server))
    signal_on_parent_death(_LEFT_ALONE)
