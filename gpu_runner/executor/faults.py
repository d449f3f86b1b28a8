"""Exceptions in the log: always their type and their place, their message only where it is wanted."""

from __future__ import annotations

import logging
import sys
import threading
import traceback

log = logging.getLogger(__name__)

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


def hide_messages(log_errors: bool) -> None:
    """Let what threads and finalisers raise go the same way; Python would print it whole."""

    def in_thread(error: threading.ExceptHookArgs) -> None:
        if error.exc_value is not None:
            log.error("a thread failed: %s", describe(error.exc_value, log_errors))

    def unraisable(error: sys.UnraisableHookArgs) -> None:
        if error.exc_value is not None:
            log.error("an exception had nowhere to go: %s", describe(error.exc_value, log_errors))

    threading.excepthook = in_thread
    sys.unraisablehook = unraisable
