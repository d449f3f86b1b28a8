"""Exceptions in the log: always their type and their place, their message only where it is wanted."""

from __future__ import annotations

import traceback

_MOST_FRAMES = 6


def describe(error: BaseException, with_message: bool) -> str:
    """An exception in one piece of text.

    Args:
        error: the exception.
        with_message: whether its message, and those of its causes, may be shown: a function's exceptions
            may hold somebody's prompt, a loader's can't.
    """
    if with_message:
        return "".join(traceback.format_exception(error)).rstrip()
    frames = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    places = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(error).__qualname__} at {places}"
