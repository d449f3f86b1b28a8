"""One JSON object a line on standard output, from structlog and from the standard library's logging alike.

Prompts, inputs, outputs and keys never get here: what is logged is named field by field.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import traceback
from collections.abc import MutableMapping
from typing import Any, BinaryIO, TextIO

import msgspec
import structlog

_encode = msgspec.json.Encoder(enc_hook=str).encode
_UTC = "%Y-%m-%dT%H:%M:%S"


def _stamp(seconds: float) -> str:
    """An instant as RFC 3339 in UTC, to the millisecond."""
    return f"{time.strftime(_UTC, time.gmtime(seconds))}.{int(seconds * 1000) % 1000:03d}Z"


class _Stamps:
    """Formats the current second once, not once a line."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def now(self) -> str:
        seconds = time.time()
        whole = int(seconds)
        if whole != self._second:
            self._second, self._text = whole, time.strftime(_UTC, time.gmtime(whole))
        return f"{self._text}.{int((seconds - whole) * 1000):03d}Z"


_stamps = _Stamps()


def _render(_logger: object, level: str, event: MutableMapping[str, Any]) -> bytes:
    return _encode({"at": _stamps.now(), "level": level, "event": event.pop("event"), **event})


class JsonFormatter(logging.Formatter):
    """Records of the standard library as the same JSON lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; an exception gives its type and place, but not its message."""
        line: dict[str, Any] = {
            "at": _stamp(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
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


def configure(stream: TextIO = sys.stdout) -> None:
    """Send all logs of this process to `stream` as JSON lines."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in ("httpx", "asyncio", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[_render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _lines,
        cache_logger_on_first_use=True,
    )
    _lines.stream = stream.buffer


def join_lines(loop: asyncio.AbstractEventLoop) -> None:
    """Write the lines of structlog's loggers some at a time, at the latest after 50 ms.

    A line for each call is a system call for each call otherwise. Only for loggers used in the loop.
    """
    _lines.loop = loop


def flush() -> None:
    """Write what waits."""
    _lines.flush()


class _Lines:
    """Where structlog's lines go: the methods are the level names that structlog calls."""

    _MOST = 64
    _LATEST_S = 0.05

    def __init__(self) -> None:
        self.stream: BinaryIO = sys.stdout.buffer
        self.loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[bytes] = []

    def msg(self, line: bytes) -> None:
        self._waiting.append(line)
        if self.loop is None or len(self._waiting) >= self._MOST:
            self.flush()
        elif len(self._waiting) == 1:
            self.loop.call_later(self._LATEST_S, self.flush)

    debug = info = warning = error = critical = exception = msg

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self.stream.write(b"\n".join([*waiting, b""]))
            self.stream.flush()


_lines = _Lines()
