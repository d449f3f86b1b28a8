"""What commands print: answers in JSON, texts of others made harmless, and output that may fail."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, TextIO

import click
from rich.cells import cell_len

# What a terminal obeys, what ends a line, what turns the direction of writing, and what can't be encoded.
_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_PIPE: Final = 200
_SMALL_TERMINAL: Final = 80
_NUMBERS: Final = re.compile(r"\[\s+(-?[\d.eE+-]+(?:,\s+-?[\d.eE+-]+)*)\s+\]")


@contextmanager
def harmless(stream: TextIO) -> Generator[None]:
    """Write to `stream` in here; once that fails, it and all that follows are dropped.

    A closed terminal is no reason to leave half-way.
    """
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


def show(answer: object) -> None:
    """Print JSON: indented for people, on one line for programs."""
    click.echo(pretty(answer) if sys.stdout.isatty() else on_one_line(answer))


def on_one_line(answer: object) -> str:
    """JSON without a line break, and without a character that a terminal obeys."""
    return _harmless_json(json.dumps(answer, ensure_ascii=False))


def columns(stream: TextIO) -> int | None:
    """How many characters a line of the terminal has; None where there is no terminal."""
    if not stream.isatty():
        return None
    try:
        return int(os.environ.get("COLUMNS", "")) or _SMALL_TERMINAL
    except ValueError:
        return os.get_terminal_size(stream.fileno()).columns or _SMALL_TERMINAL


def plain(text: str) -> str:
    """A text that somebody else wrote, with what is no plain character shown as an escape."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str, width: int | None) -> str:
    """The same, cut to the width, or for programs to 200 characters."""
    room, shown = width or _PIPE, plain(text)
    if cell_len(shown) <= room:
        return shown
    while cell_len(shown) > room - 3:
        shown = shown[: min(len(shown) - 1, room)]
    return shown + "..."


def pretty(answer: object) -> str:
    """JSON to read: a vector of hundreds of numbers is one line, not hundreds."""
    text = _NUMBERS.sub(
        lambda match: "[" + " ".join(match[1].split()) + "]",
        json.dumps(answer, ensure_ascii=False, indent=2),
    )
    return "\n".join(map(_harmless_json, text.split("\n")))


def _harmless_json(line: str) -> str:
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
