"""What the executor keeps of whatever it has begun, be it one call or several that are joined."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from gpu_runner.executor.failures import NO_THREAD, Failure, failure_of
from gpu_runner.executor.faults import describe
from gpu_runner.executor.interrupts import Body
from gpu_runner.executor.residency import Residency
from gpu_runner.frames import BatchEnded, Done, Failed
from headrace.errors import InvalidOutput
from headrace.sdk import Call, Function

log = logging.getLogger(__name__)

Outcome = Done | Failed | BatchEnded
Id = tuple[str, int]
"""A job's id, and which start of it this is."""


class Start(ABC):
    """One start of a function's body, with all that is needed to run it and to end it.

    Args:
        function: whose body runs.
        call: what can be stopped; of joined calls, what stands for all of them.
        body: how it can be interrupted.
        residency: the loaded models.
        with_messages: whether messages of exceptions are logged.
    """

    def __init__(
        self,
        function: Function[Any, Any],
        call: Call,
        body: Body,
        residency: Residency,
        *,
        with_messages: bool = False,
    ) -> None:
        self.function = function
        self.call = call
        self.body = body
        self._residency = residency
        self._with_messages = with_messages
        self._began = time.perf_counter()

    @property
    @abstractmethod
    def ids(self) -> tuple[Id, ...]:
        """All that a stop may name."""

    @abstractmethod
    def perform(self) -> Iterable[Outcome]:
        """Run a synchronous body to its end, and answer. Raises nothing, whatever the body does."""

    @abstractmethod
    def perform_async(self) -> AsyncIterator[Outcome]:
        """The same for an asynchronous body."""

    def stop(self, job_id: str) -> bool:
        """Mark a call as one that nobody wants any more; returns whether the body is to end by that."""
        self.call.stop()
        return True

    def interrupt(self) -> bool:
        """Have `CallStopped` raised in the body; returns whether that is news."""
        is_news = not self.body.is_interrupted
        self.body.interrupt()
        return is_news

    def grant(self, items: int) -> None:  # noqa: B027 - most stream nothing
        """Let so many more items of a stream be sent."""

    def refused(self, error: Exception) -> Iterator[Outcome]:
        """The answers when it couldn't be begun, for the want of a thread."""
        job_id, attempt = self.ids[0]
        log.error("job %s (attempt %d) got no thread: %s", job_id, attempt, error)
        return self._all_failed(NO_THREAD)

    @abstractmethod
    def _all_failed(self, failure: Failure) -> Iterator[Outcome]:
        """The answers when nothing was run."""

    @property
    def _is_told_to_end(self) -> bool:
        return self.call.is_stopped or self.body.is_interrupted

    def _models(self) -> dict[str, Any]:
        return {parameter: self._residency.get(model) for parameter, model in self.function.models.items()}

    def _failure(self, error: BaseException, call: Call) -> Failure:
        """What went wrong in a call, told in the log where it is the function's doing."""
        told = self._is_told_to_end or call.is_stopped
        failure = failure_of(error, is_told_to_end=told)
        if failure.is_remarkable:
            log.warning(
                "function %s failed in job %s (attempt %d, %s): %s",
                self.function.name,
                call.job_id,
                call.attempt,
                failure.category,
                describe(error, self._with_messages),
            )
        return failure

    def _failed(self, job_id: str, failure: Failure) -> Failed:
        return Failed(
            job_id,
            failure.category,
            failure.message,
            self._elapsed(),
            failure.retryable,
            failure.errors,
            failure.retry_after_s,
        )

    def _done(self, job_id: str, output: object) -> Done:
        data = self.function.encode(output)
        limit = self.function.manifest.limits.output
        if len(data) > limit:
            raise InvalidOutput(f"the output has {len(data)} bytes, the function's limit is {limit}")
        return Done(job_id, data, self._elapsed())

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began
