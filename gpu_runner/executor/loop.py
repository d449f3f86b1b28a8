"""The event loop of asynchronous bodies, which has to stay whole when one of them forks.

A forked child gets copies of the loop's descriptors, but shares with its parent what they stand for: it would
take events that are the parent's, and let no more come. Nor is what other bodies do next its business.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import threading
from typing import Any, NoReturn, cast

log = logging.getLogger(__name__)


class BodiesLoop(asyncio.SelectorEventLoop):
    """Runs in one thread until the process ends."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._thread = 0
        self._events = selectors.DefaultSelector()
        super().__init__(self._events)

    def run(self) -> NoReturn:
        """Run in this thread, whatever the bodies do. A forked child that comes back to the loop ends."""
        self._thread = threading.get_ident()
        asyncio.set_event_loop(self)
        while True:
            try:
                self.run_forever()
            except BaseException:  # SystemExit in a task that a body left behind passes through the loop
                if os.getpid() != self._pid:
                    os._exit(1)
                log.exception("a task that a function started ended the event loop; it goes on")

    @property
    def is_here(self) -> bool:
        """Whether it is this thread that runs it."""
        return self._thread == threading.get_ident()

    def leave(self) -> None:
        """Leave the loop to the parent: in a forked child, in the thread that runs it there.

        The child goes on to where its body ends, or first waits, and no further. The selector is closed, as
        to unregister anything would do so for the parent as well.
        """
        self._events.close()
        # Nothing public names what is to be done next.
        cast(Any, self)._ready.clear()  # noqa: SLF001
