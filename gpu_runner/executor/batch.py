"""Joined calls as a pipeline: decode each, perform together, encode each.

What is wrong with one call fails that one only. What fails for several is tried again in halves: always when
memory ran out, and after an exception where the function's `attempts` allow that a body runs again.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final, cast

from gpu_runner.executor.failures import STOPPED, Failure, failure_of
from gpu_runner.executor.faults import describe
from gpu_runner.executor.interrupts import Body
from gpu_runner.executor.residency import Residency
from gpu_runner.executor.starts import Id, Outcome, Start
from gpu_runner.frames import BatchEnded, BatchItem, Failed, RunBatch
from headrace.errors import CallStopped, InvalidOutput
from headrace.sdk import Call, Function

log = logging.getLogger(__name__)

_OUT_OF_MEMORY: Final = "out-of-memory"
_MAY_BE_ONE_CALLS_FAULT: Final = frozenset({"function-failed", "invalid-input"})
_SOMEBODYS_FAULT: Final = Failure("function-failed", "The function failed.")
"""What each is told where it isn't known whose fault it was: the message may be about another one's input."""


class _Item:
    """One of the calls, with its decoded input."""

    __slots__ = ("call", "frame", "is_answered", "value")

    def __init__(self, frame: BatchItem, call: Call) -> None:
        self.frame = frame
        self.call = call
        self.value: Any = None
        self.is_answered = False


class BatchExecution(Start):
    """Joined calls of a batched function, while they run.

    Args:
        batch: what the supervisor asked for.
        function: the function that it names.
        call: what stands for all of the calls.
        calls: what the function sees of each, in the order of the batch; each joined to `call`.
        body: how it can be interrupted.
        residency: the loaded models.
        with_messages: whether messages of exceptions are logged.
    """

    def __init__(
        self,
        batch: RunBatch,
        function: Function[Any, Any],
        call: Call,
        calls: Sequence[Call],
        body: Body,
        residency: Residency,
        *,
        with_messages: bool = False,
    ) -> None:
        super().__init__(function, call, body, residency, with_messages=with_messages)
        self._batch = batch
        self._items = [_Item(frame, one) for frame, one in zip(batch.items, calls, strict=True)]
        self._waiting: deque[list[_Item]] = deque()
        self._left_out: list[_Item] = []
        self._passes: list[int] = []
        self._is_short_of_memory = False
        self._too_many = 0
        self._pid = os.getpid()

    @property
    def ids(self) -> tuple[Id, ...]:
        """As of `Start`: the batch, then its calls."""
        items = ((one.frame.job_id, one.frame.attempt) for one in self._items)
        return ((self._batch.job_id, 1), *items)

    def stop(self, job_id: str) -> bool:
        """Mark one call, or by the batch's id all of them; the body is to end when none is wanted."""
        for one in self._items:
            if one.frame.job_id == job_id:
                one.call.stop()
        nobody_waits = all(one.call.is_stopped or one.is_answered for one in self._items)
        if nobody_waits or job_id == self._batch.job_id:
            self.call.stop()
        return self.call.is_stopped

    def perform(self) -> Iterator[Outcome]:
        """Run a synchronous function as often as it takes; each call is answered as soon as it can be."""
        yield from self._decoded()
        while items := self._next_pass():
            try:
                inputs, injected = self._arguments(items)
                body = self.body
                # As for one call: an interruption may cut off `begin` and `end` too.
                try:
                    body.begin()
                    output = self.function.fn(inputs, **injected)
                finally:
                    body.end()
                outcomes = self._answered(items, output)
            except BaseException as error:
                outcomes = self._broken(items, error)
            yield from outcomes
        yield from self._ended()

    async def perform_async(self) -> AsyncIterator[Outcome]:
        """The same for an asynchronous function."""
        for refusal in self._decoded():
            yield refusal
        while items := self._next_pass():
            try:
                inputs, injected = self._arguments(items)
                outcomes = self._answered(items, await self.function.fn(inputs, **injected))
            except BaseException as error:
                outcomes = self._broken(items, error)
            for outcome in outcomes:
                yield outcome
        for outcome in self._ended():
            yield outcome

    # ------------------------------------------------------------------ the steps

    def _decoded(self) -> Iterator[Outcome]:
        """Read every input; what can't be read is answered, the others are to run."""
        readable: list[_Item] = []
        for one in self._items:
            try:
                one.value = self.function.decode(one.frame.input)
            except BaseException as error:
                yield self._fail(one, self._failure(error, one.call))
            else:
                readable.append(one)
        self._waiting.append(readable)

    def _next_pass(self) -> list[_Item]:
        """The calls that the body runs for next; none when all have been through it."""
        if self._is_short_of_memory:
            self._is_short_of_memory = False
            _free_memory()
        while self._waiting:
            items = self._waiting.popleft()
            if not self._may_go_on():
                self._left_out += items
                continue
            wanted = [one for one in items if not one.call.is_stopped]
            self._left_out += [one for one in items if one.call.is_stopped]
            if wanted:
                self._passes.append(len(wanted))
                return wanted
        return []

    def _may_go_on(self) -> bool:
        if self.body.is_interrupted:
            return False
        try:
            self.call.check()
        except CallStopped:
            return False
        return True

    def _arguments(self, items: list[_Item]) -> tuple[list[Any], dict[str, Any]]:
        injected = self._models()
        if self.function.call_parameter is not None:
            injected[self.function.call_parameter] = [one.call for one in items]
        return [one.value for one in items], injected

    def _answered(self, items: list[_Item], outputs: object) -> Iterator[Outcome]:
        """An answer for each output, in order; each is encoded when those before it have left.

        Raises:
            InvalidOutput: there isn't one for each call.
        """
        if not isinstance(outputs, list | tuple):
            kind = type(outputs).__name__
            raise InvalidOutput(f"the function returned {kind}, not a list of {len(items)} outputs")
        given = list(cast("Sequence[object]", outputs))  # the author's own may shrink meanwhile
        if len(given) != len(items):
            raise InvalidOutput(f"the function returned {len(given)} outputs for {len(items)} inputs")
        return (self._answer(one, output) for one, output in zip(items, given, strict=True))

    def _answer(self, one: _Item, output: object) -> Outcome:
        if one.call.is_stopped:  # the body may have left it out
            return self._fail(one, STOPPED)
        try:
            if isinstance(output, Exception):  # which asks an author's class
                return self._fail(one, self._failure(output, one.call))
            done = self._done(one.frame.job_id, output)
        except BaseException as error:
            return self._fail(one, self._failure(error, one.call))
        one.is_answered = True
        return done

    def _broken(self, items: list[_Item], error: BaseException) -> list[Outcome]:
        """Queue the halves of a pass that failed as a whole, or answer all of its calls."""
        failure = failure_of(error, is_told_to_end=self._is_told_to_end)
        again = self._may_run_again(items, failure)
        if failure.is_remarkable:
            log.warning(
                "function %s failed for %d joined calls%s (%s; jobs %s): %s",
                self.function.name,
                len(items),
                ", which run again in halves" if again else "",
                failure.category,
                ", ".join(one.frame.job_id for one in items),
                describe(error, self._with_messages),
            )
        if not again:
            if len(items) > 1 and failure.category in _MAY_BE_ONE_CALLS_FAULT:
                failure = _SOMEBODYS_FAULT
            return [self._fail(one, failure) for one in items]
        self._is_short_of_memory = failure.category == _OUT_OF_MEMORY
        if self._is_short_of_memory:
            self._too_many = min(self._too_many or len(items), len(items))
        middle = (len(items) + 1) // 2
        self._waiting.extendleft((items[middle:], items[:middle]))
        return []

    def _may_run_again(self, items: list[_Item], failure: Failure) -> bool:
        # In another process a body has forked, and its child came back: that one is to end.
        if len(items) == 1 or self._is_told_to_end or os.getpid() != self._pid:
            return False
        if failure.category == _OUT_OF_MEMORY:
            return True
        return self.function.manifest.attempts > 1 and failure.category in _MAY_BE_ONE_CALLS_FAULT

    def _ended(self) -> Iterator[Outcome]:
        for one in self._left_out:
            yield self._fail(one, STOPPED)
        yield BatchEnded(self._batch.job_id, self._elapsed(), tuple(self._passes), self._too_many)

    def _all_failed(self, failure: Failure) -> Iterator[Outcome]:
        for one in self._items:
            yield self._fail(one, failure)
        yield from self._ended()

    def _fail(self, one: _Item, failure: Failure) -> Failed:
        one.is_answered = True
        return self._failed(one.frame.job_id, failure)


def _free_memory() -> None:
    """Let go of what the failed pass has left behind; its exception, with all it held, is gone by now."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
