"""Output that may fail without harm: a closed terminal is no reason to leave half-way."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

import click


@contextmanager
def harmless(stream: TextIO) -> Generator[None]:
    """Write to `stream` in here; once that fails, it and all that follows are dropped."""
    try:
        yield
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        # Below the stream, so that what it still holds, and the interpreter's last flush, go there too.
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def say(text: str) -> None:
    """Print to standard output, if anybody is there."""
    with harmless(sys.stdout):
        click.echo(text)
