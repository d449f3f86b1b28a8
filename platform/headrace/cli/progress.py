"""What goes on: a spinner for people, plain lines for everything else."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text

from headrace.cli.output import harmless


class Progress:
    """Shows one step at a time on standard error; a context manager.

    Args:
        first: what people see until the first step.
    """

    def __init__(self, first: str = "starting") -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status = self._console.status(first) if self._console.is_terminal else None

    def tell(self, text: str) -> None:
        """Show a step, or a line about something that happened: one that is indented stays to be read."""
        with harmless(sys.stderr):
            if self._status is not None and not text.startswith(" "):
                self._status.update(Text(text))
            else:
                self._console.print(text, markup=False)

    def finish(self) -> None:
        """Stop the spinner; what follows is printed as plain lines."""
        status, self._status = self._status, None
        if status is not None:
            with harmless(sys.stderr):
                status.stop()

    def __enter__(self) -> Self:
        if self._status is not None:
            with harmless(sys.stderr):
                self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()
