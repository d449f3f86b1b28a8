"""Server-sent events as answers write them (the HTML standard, section 9.2)."""

from __future__ import annotations

from typing import Final

HEARTBEAT_S: Final = 15.0
"""Seconds of silence after which a comment is sent: shorter than any proxy's patience."""

HEARTBEAT: Final = b": still here\n\n"
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx would gather events before it passes them on
)


def frame(kind: str, number: int, data: bytes) -> bytes:
    """One event; data of several lines is sent as several, which the reader joins."""
    lines = b"".join(b"data: %b\n" % line for line in data.splitlines())
    return b"id: %d\nevent: %b\n%b\n" % (number, kind.encode("ascii"), lines)
