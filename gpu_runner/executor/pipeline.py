"""One call as a pipeline: decode, inject, perform, encode; and one place for what goes wrong."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Any, cast

from gpu_runner.executor.faults import describe
from gpu_runner.executor.interrupts import Body
from gpu_runner.executor.residency import Residency
from gpu_runner.frames import Done, Failed, Run
from headrace.errors import CallStopped, InvalidInput, InvalidOutput, PermanentError, TransientError
from headrace.sdk import Call, Function

log = logging.getLogger(__name__)

_LONGEST_TEXT = 4096
_UNREMARKABLE = frozenset({"invalid-input", "stopped"})  # the caller's doing


class Execution:
    """One running call.

    Args:
        run: what the supervisor asked for.
        function: the function that it names.
        call: what the function sees of its call.
        body: how it can be interrupted.
        residency: the loaded models.
        with_messages: whether messages of exceptions are logged.
    """

    def __init__(
        self,
        run: Run,
        function: Function[Any, Any],
        call: Call,
        body: Body,
        residency: Residency,
        with_messages: bool = False,
    ) -> None:
        self.run = run
        self.function = function
        self.call = call
        self.body = body
        self._residency = residency
        self._with_messages = with_messages
        self._began = time.perf_counter()

    def perform(self) -> Done | Failed:
        """Run a synchronous function to its end."""
        try:
            self._refuse_stopped()
            value = self.function.decode(self.run.input)
            injected = self._injected()
            body = self.body
            # What is raised in the body from outside may cut off `begin` and `end` too: hence the outer try.
            try:
                body.begin()
                output = self.function.fn(value, **injected)
            finally:
                body.end()
            return self._done(output)
        except BaseException as error:
            return self._failed(error)

    async def perform_async(self) -> Done | Failed:
        """Run an asynchronous function to its end."""
        try:
            self._refuse_stopped()
            value = self.function.decode(self.run.input)
            output = await self.function.fn(value, **self._injected())
            return self._done(output)
        except BaseException as error:
            return self._failed(error)

    def refused(self, error: Exception) -> Failed:
        """The answer when it couldn't be begun, for the want of a thread."""
        log.error("job %s (attempt %d) got no thread: %s", self.run.job_id, self.run.attempt, error)
        return self._failure("transient", "The executor could start no thread.", retryable=True)

    def _refuse_stopped(self) -> None:
        if self._is_told_to_end():  # while it waited for its thread
            raise CallStopped("the call was stopped before it began")

    def _is_told_to_end(self) -> bool:
        return self.call.is_stopped or self.body.is_interrupted

    def _injected(self) -> dict[str, Any]:
        injected: dict[str, Any] = {
            parameter: self._residency.get(model) for parameter, model in self.function.models.items()
        }
        if self.function.call_parameter is not None:
            injected[self.function.call_parameter] = self.call
        return injected

    def _done(self, output: object) -> Done | Failed:
        data = self.function.encode(output)
        limit = self.function.manifest.limits.output
        if len(data) > limit:
            raise InvalidOutput(f"the output has {len(data)} bytes, the function's limit is {limit}")
        return Done(self.run.job_id, data, self._elapsed())

    def _failed(self, error: BaseException) -> Failed:
        try:
            failed = self._categorised(error)
        except BaseException:  # an author's own exception class may be broken too
            failed = self._failure("function-failed", "The function failed.")
        if failed.category not in _UNREMARKABLE:
            log.warning(
                "function %s failed in job %s (attempt %d, %s): %s",
                self.run.function,
                self.run.job_id,
                self.run.attempt,
                failed.category,
                describe(error, self._with_messages),
            )
        return failed

    def _categorised(self, error: BaseException) -> Failed:  # noqa: PLR0911 - a table
        match error:
            case _ if self._is_told_to_end() and _came_of(error, (CallStopped, asyncio.CancelledError)):
                return self._failure("stopped", "The call was stopped.")
            case InvalidInput():
                message, path = _text(error.message), _text(error.path)
                return self._failure("invalid-input", message, errors=((path, message),))
            case PermanentError():
                return self._failure("function-failed", _text(error))
            case TransientError():
                return self._failure("transient", "The function failed for now.", retryable=True)
            case InvalidOutput():
                return self._failure("invalid-output", _text(error))
            case CallStopped() | asyncio.CancelledError():
                return self._failure("stopped", "The call was stopped.")
            case _ if _came_of(error, (CallStopped,)):
                return self._failure("stopped", "The call was stopped.")
            case _ if _is_out_of_memory(error):
                return self._failure("out-of-memory", "The function ran out of memory.", retryable=True)
            case _:
                return self._failure("function-failed", "The function failed.")

    def _failure(
        self,
        category: str,
        message: str,
        *,
        retryable: bool = False,
        errors: tuple[tuple[str, str], ...] = (),
    ) -> Failed:
        return Failed(self.run.job_id, category, message, self._elapsed(), retryable, errors)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began


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


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)
