"""Imported once by the fork server, so that executors share the pages of the heavy libraries.

The names come in the environment: the fork server imports modules, it takes no arguments. A library that
can't be imported here fails again, with its message, in the loader that needs it.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal

from headrace.process import signal_on_parent_death

VARIABLE = "_HEADRACE_PRELOAD"

if VARIABLE in os.environ:
    # The fork server's own way, a pipe that ends, is held open by every executor, hanging ones too.
    signal_on_parent_death(signal.SIGKILL)

for _name in filter(None, os.environ.get(VARIABLE, "").split(",")):
    try:
        importlib.import_module(_name)
    except Exception as error:
        logging.getLogger(__name__).info("could not preload %s: %s", _name, type(error).__name__)
