"""What `faulthandler` writes of an executor's threads, shortened to what functions do. Slow to load."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_FRAME: Final = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_CALLS_THE_BODY: Final = re.compile(
    r".*gpu_runner/executor/((pipeline|batch)\.py:perform|streaming\.py:drain)(_async)?"
)
_OWN: Final = ("gpu_runner/executor/", "/threading.py", "/selectors.py", "/asyncio/", "/concurrent/futures/")
"""Where the executor's own threads wait for work."""


def shortened(text: str) -> str:
    """The threads that run functions, or were started by them, each without what called it.

    Args:
        text: as it came; what isn't understood stays as it is.
    """
    threads = [thread.splitlines() for thread in text.strip().split("\n\n") if thread]
    shown: list[str] = []
    for lines in threads:
        frames = lines[1:]
        body = _body(frames)
        if body is not None:
            shown.append("\n".join(["A function (most recent call first):", *body]))
        elif not _is_own(frames):
            shown.append("\n".join(lines))
    if len(shown) < len(threads):
        count = len(threads) - len(shown)
        others = f"{count} thread{'' if count == 1 else 's'} of the executor itself"
        shown.append(f"{others} not shown: --all shows everything.")
    return "\n\n".join(shown)


def _body(frames: Sequence[str]) -> Sequence[str] | None:
    """The frames of a function, up to where the executor called it; None where it called none."""
    for at, line in enumerate(frames):
        match = _FRAME.fullmatch(line)
        if match and _CALLS_THE_BODY.fullmatch(f"{match[1]}:{match[3]}"):
            return frames[:at]
    return None


def _is_own(frames: Sequence[str]) -> bool:
    """Whether a thread is the executor's: it stands in what waits for work, called by nobody else."""
    places = [match[1] for line in frames if (match := _FRAME.fullmatch(line))]
    for place in places:
        if not any(own in place for own in _OWN):
            return False
        if _OWN[0] in place:
            break
    return bool(places)
