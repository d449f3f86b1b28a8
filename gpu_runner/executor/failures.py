"""One place for what goes wrong in a body: what an exception is to whoever called."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import cast

from headrace.errors import (
    CallStopped,
    CannotWait,
    InvalidInput,
    InvalidOutput,
    InvocationError,
    PermanentError,
    TransientError,
)

_LONGEST_TEXT = 4096


@dataclass(frozen=True, slots=True)
class Failure:
    """How a call has failed; fields as of the frame `Failed`."""

    category: str
    message: str
    retryable: bool = False
    errors: tuple[tuple[str, str], ...] = ()
    retry_after_s: float = 0.0

    @property
    def is_remarkable(self) -> bool:
        """Whether it belongs into the log: what is the caller's doing doesn't."""
        return self.category not in {"invalid-input", "stopped"}


STOPPED = Failure("stopped", "The call was stopped.")
NO_THREAD = Failure("transient", "The executor could start no thread.", retryable=True)


def failure_of(error: BaseException, *, is_told_to_end: bool) -> Failure:
    """What an exception means.

    Args:
        error: what the body raised, or returned in the place of an output.
        is_told_to_end: whether the call had been stopped, or interrupted.
    """
    try:
        return _categorised(error, is_told_to_end)
    except BaseException:  # an author's own exception class may be broken too
        return Failure("function-failed", "The function failed.")


def _categorised(error: BaseException, is_told_to_end: bool) -> Failure:  # noqa: C901, PLR0911 - a table
    match error:
        case _ if is_told_to_end and _came_of(error, (CallStopped, asyncio.CancelledError)):
            return STOPPED
        case InvalidInput():
            message, path = _text(error.message), _text(error.path)
            return Failure("invalid-input", message, errors=((path, message),))
        case PermanentError() | CannotWait():
            return Failure("function-failed", _text(error))
        case TransientError():
            seconds = float(error.retry_after or 0.0)
            return Failure("transient", "The function failed for now.", retryable=True, retry_after_s=seconds)
        case InvalidOutput():
            return Failure("invalid-output", _text(error))
        case CallStopped() | asyncio.CancelledError():
            return STOPPED
        case _ if _came_of(error, (CallStopped,)):
            return STOPPED
        case _ if (failed := _invocation_of(error)) is not None:
            if failed.is_passing:
                return Failure("transient", "The function failed for now.", retryable=True)
            return Failure("function-failed", _text(failed))
        case _ if _is_out_of_memory(error):
            return Failure("out-of-memory", "The function ran out of memory.", retryable=True)
        case _:
            return Failure("function-failed", "The function failed.")


def _text(words: object) -> str:
    """What an author gave as a message, as text that can be sent: a file's name may hold lone surrogates.

    Bounded, as some quote their whole input.
    """
    text = str(words)
    if len(text) > _LONGEST_TEXT:
        text = text[: _LONGEST_TEXT - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return text.encode("utf-8", "replace").decode()


def _came_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether it is of these kinds, or was raised because of one: libraries wrap what they catch."""
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, kinds):
            return True
        seen.add(id(one))
        found += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            found += cast(BaseExceptionGroup[BaseException], one).exceptions
    return False


def _invocation_of(error: BaseException) -> InvocationError | None:
    """The failed call of another function that the body let pass; of a group, one that is for good."""
    if isinstance(error, InvocationError):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    group = cast(BaseExceptionGroup[BaseException], error)
    found = [_invocation_of(one) for one in group.exceptions]
    failed = [one for one in found if one is not None]
    if len(failed) < len(found):
        return None  # something else went wrong, too
    return min(failed, key=lambda one: one.is_passing)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)
