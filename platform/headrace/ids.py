"""Identifiers: UUIDv7 of RFC 9562, which sort by the time they were made."""

from __future__ import annotations

import os
import struct
import time

_BATCH = 128  # random numbers for each system call

_last = 0
_noise: list[int] = []
os.register_at_fork(after_in_child=_noise.clear)


def uuid7() -> str:
    """A new UUIDv7 as text.

    60 bits of time (milliseconds, then units of 256 ns) and 62 random ones. Within a process later ids sort
    after earlier ones, also when the clock stands still or steps back.
    """
    global _last  # noqa: PLW0603 - the last instant given out is the point of it
    now = time.time_ns()
    instant = now // 1_000_000 << 12 | now % 1_000_000 >> 8
    if instant <= _last:
        instant = _last + 1
    _last = instant
    if not _noise:
        _noise.extend(struct.unpack(f"{_BATCH}Q", os.urandom(8 * _BATCH)))
    noise = _noise.pop() >> 2
    value = instant >> 12 << 80 | 0x7000_8000_0000_0000_0000 | (instant & 0xFFF) << 64 | noise
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
