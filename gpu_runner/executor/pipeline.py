"""One call as a pipeline: decode, inject, perform, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from gpu_runner.executor.failures import Failure
from gpu_runner.executor.interrupts import Body
from gpu_runner.executor.residency import Residency
from gpu_runner.executor.starts import Id, Outcome, Start
from gpu_runner.executor.streaming import ItemStream
from gpu_runner.frames import Run, Streamed
from headrace.errors import CallStopped
from headrace.sdk import Call, Function


class Execution(Start):
    """One running call.

    Args:
        run: what the supervisor asked for.
        function: the function that it names.
        call: what the function sees of its call.
        body: how it can be interrupted.
        residency: the loaded models.
        send: takes the items of a stream.
        with_messages: whether messages of exceptions are logged.
    """

    def __init__(
        self,
        run: Run,
        function: Function[Any, Any],
        call: Call,
        body: Body,
        residency: Residency,
        send: Callable[[Streamed], None],
        *,
        with_messages: bool = False,
    ) -> None:
        super().__init__(function, call, body, residency, with_messages=with_messages)
        self._run = run
        self._ids = ((run.job_id, run.attempt),)
        self._stream = ItemStream(function, call, run.credit, send) if function.is_streaming else None

    @property
    def ids(self) -> tuple[Id, ...]:
        """As of `Start`."""
        return self._ids

    def perform(self) -> Iterable[Outcome]:
        """Run a synchronous function to its end."""
        try:
            self._refuse_stopped()
            value = self.function.decode(self._run.input)
            injected = self._injected()
            body = self.body
            # What is raised in the body from outside may cut off `begin` and `end` too: hence the outer try.
            try:
                body.begin()
                output = self.function.fn(value, **injected)
                if self._stream is not None:
                    output = self._stream.drain(output)
            finally:
                body.end()
            return (self._done(self._run.job_id, output),)
        except BaseException as error:
            return (self._failed(self._run.job_id, self._failure(error, self.call)),)

    async def perform_async(self) -> AsyncIterator[Outcome]:
        """Run an asynchronous function to its end."""
        try:
            self._refuse_stopped()
            value = self.function.decode(self._run.input)
            output = self.function.fn(value, **self._injected())
            output = await (output if self._stream is None else self._stream.drain_async(output))
            outcome: Outcome = self._done(self._run.job_id, output)
        except BaseException as error:
            outcome = self._failed(self._run.job_id, self._failure(error, self.call))
        yield outcome

    def grant(self, items: int) -> None:
        """As of `Start`."""
        if self._stream is not None:
            self._stream.grant(items)

    def _all_failed(self, failure: Failure) -> Iterator[Outcome]:
        yield self._failed(self._run.job_id, failure)

    def _refuse_stopped(self) -> None:
        if self._is_told_to_end:  # while it waited for its thread
            raise CallStopped("the call was stopped before it began")

    def _injected(self) -> dict[str, Any]:
        injected = self._models()
        if self.function.call_parameter is not None:
            injected[self.function.call_parameter] = self.call
        return injected
