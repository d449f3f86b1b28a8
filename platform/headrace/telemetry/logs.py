"""One JSON object a line on standard output, from structlog and from the standard library's logging alike.

Prompts, inputs, outputs and keys never get here: what is logged is named field by field.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import sys
import time
import traceback
from typing import Any, BinaryIO, TextIO

import msgspec
import structlog

_encode = msgspec.json.Encoder(enc_hook=str).encode
_UTC = "%Y-%m-%dT%H:%M:%S"


class _Stamps:
    """Instants as RFC 3339 in UTC, to the millisecond; formats a second once, not once a line."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def at(self, seconds: float) -> str:
        whole = int(seconds)
        if whole != self._second:
            self._second, self._text = whole, time.strftime(_UTC, time.gmtime(whole))
        return f"{self._text}.{int((seconds - whole) * 1000):03d}Z"


_stamps = _Stamps()


class Lines(structlog.BoundLoggerBase):
    """structlog's logger without a chain of processors: a line for each call has to be cheap."""

    def info(self, event: str, **fields: Any) -> None:
        """Write one line."""
        at = _stamps.at(time.time())
        self._logger.msg(_encode({"at": at, "level": "info", "event": event, **self._context, **fields}))


class JsonFormatter(logging.Formatter):
    """Records of the standard library as the same JSON lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; an exception gives its type and place, but not its message."""
        line: dict[str, Any] = {
            "at": _stamps.at(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage().encode("utf-8", "replace").decode(),
            "logger": record.name,
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = type(error).__qualname__
            line["where"] = [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)
            ]
        return _encode(line).decode()


class _Output:
    """Where structlog's lines go: at once, or some at a time."""

    _MOST = 64
    _LATEST_S = 0.05

    def __init__(self) -> None:
        self.stream: BinaryIO = sys.stdout.buffer
        self.loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[bytes] = []

    def msg(self, line: bytes) -> None:
        self._waiting.append(line)
        if self.loop is None or len(self._waiting) >= self._MOST or self.loop.is_closed():
            self.flush()
        elif len(self._waiting) == 1:
            self.loop.call_later(self._LATEST_S, self.flush)

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self.stream.write(b"\n".join([*waiting, b""]))
            self.stream.flush()


_output = _Output()


def configure(stream: TextIO = sys.stdout) -> None:
    """Send all logs of this process to `stream` as JSON lines."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in ("httpx", "asyncio", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    _output.stream = stream.buffer
    structlog.configure(
        wrapper_class=Lines, logger_factory=lambda *_: _output, cache_logger_on_first_use=True
    )


def configure_plain(stream: TextIO = sys.stdout) -> None:
    """Send warnings and errors of this process to `stream` as text, for people; the rest nowhere."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_PlainFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


class _PlainFormatter(logging.Formatter):
    """`warning: ...`; an exception gives its type, but not its message."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        why = f" ({type(error).__qualname__})" if error else ""
        return f"{record.levelname.lower()}: {record.getMessage()}{why}"


def join_lines(loop: asyncio.AbstractEventLoop) -> None:
    """Write structlog's lines some at a time, at the latest after 50 ms; only for loggers used in the loop.

    A line for each call is a system call for each call otherwise.
    """
    _output.loop = loop
    atexit.register(flush)


def now() -> str:
    """The present instant as lines tell it."""
    return _stamps.at(time.time())


def write(line: msgspec.Struct) -> None:
    """Write a line of its own form, with `at`, `level` and `event`: cheaper than members by name."""
    _output.msg(_encode(line))


def flush() -> None:
    """Write what waits."""
    _output.flush()
