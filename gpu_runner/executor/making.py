"""Starts made of what the supervisor asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpu_runner.executor.batch import BatchExecution
from gpu_runner.executor.interrupts import Body, MainBody, ThreadBody
from gpu_runner.executor.pipeline import Execution
from gpu_runner.executor.residency import Residency
from gpu_runner.executor.starts import Start
from gpu_runner.frames import BatchItem, Reported, Run, RunBatch, Streamed
from headrace.sdk import Call, Function
from headrace.sdk.call import Invoke


class Maker:
    """Makes starts.

    Args:
        functions: by name.
        residency: the loaded models.
        tell: takes progress and items of streams.
        look_up: fetches news of stops, where a running body has to ask for them.
        invoke_of: what calls other functions for a start: by job id, attempt, and its function.
        log_errors: whether messages of functions' exceptions are logged.
    """

    def __init__(
        self,
        functions: Mapping[str, Function[Any, Any]],
        residency: Residency,
        tell: Callable[[Reported | Streamed], None],
        look_up: Callable[[], None] | None,
        invoke_of: Callable[[str, int, Function[Any, Any]], Invoke],
        *,
        log_errors: bool = False,
    ) -> None:
        self._functions = functions
        self._residency = residency
        self._tell = tell
        self._look_up = look_up
        self._invoke_of = invoke_of
        self._log_errors = log_errors
        self._bodies = {name: _body_of(function) for name, function in functions.items()}

    def make(self, frame: Run | RunBatch) -> Start:
        """What is to run now, or in its turn; its soft limit counts from here."""
        function = self._functions[frame.function]
        soft_at = time.monotonic() + frame.soft_s
        return (
            self._single(frame, function, soft_at)
            if isinstance(frame, Run)
            else self._batch(frame, function, soft_at)
        )

    def _single(self, run: Run, function: Function[Any, Any], soft_at: float) -> Execution:
        call = self._call(run, function, soft_at)
        body = self._bodies[run.function](call)
        return Execution(
            run, function, call, body, self._residency, self._tell, with_messages=self._log_errors
        )

    def _batch(self, batch: RunBatch, function: Function[Any, Any], soft_at: float) -> BatchExecution:
        latest = max(item.deadline_at for item in batch.items)
        whole = self._call(BatchItem(batch.job_id, b"", 1, latest), function, soft_at)
        calls = [self._call(item, function, soft_at, whole) for item in batch.items]
        body = self._bodies[batch.function](whole)
        return BatchExecution(
            batch, function, whole, calls, body, self._residency, with_messages=self._log_errors
        )

    def _call(
        self, of: Run | BatchItem, function: Function[Any, Any], soft_at: float, whole: Call | None = None
    ) -> Call:
        hard_at = time.monotonic() + function.manifest.budget.hard
        return Call(
            job_id=of.job_id,
            attempt=of.attempt,
            soft_at=soft_at,
            deadline_at=min(hard_at, of.deadline_at),
            report=partial(self._report, of.job_id),
            look_up=self._look_up,
            joined_to=whole,
            invoke=self._invoke_of(of.job_id, of.attempt, function),
        )

    def _report(self, job_id: str, fraction: float, message: str) -> None:
        self._tell(Reported(job_id, fraction, message))


def _body_of(function: Function[Any, Any]) -> type[Body]:
    if function.is_async:
        return Body
    return ThreadBody if function.manifest.concurrency > 1 else MainBody
