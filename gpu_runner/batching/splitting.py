"""Tells each call of a running lot what has become of it.

A call that nobody wants any more, or whose deadline passes, is answered at once, and the others go on; it
counts as running until the body is through with it, so that it doesn't start twice at once. Only when none of
them is wanted any more is the lot stopped as a call is. Past its hard limit the executor is killed: any of
the calls may be the reason, so each is given back, uncharged, to run with nothing beside it; a lot of one is
the reason itself.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol, cast

from gpu_runner.answers import answer_of, answer_of_lost
from gpu_runner.batching.joining import Joining
from gpu_runner.books import Books
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.frames import BatchEnded, Done, Failed, Stop
from gpu_runner.lots import Joined, Lot
from headrace.link.frames import Error, Lost

log = logging.getLogger(__name__)


class Holder(Protocol):
    """Who holds a job, as far as it is asked why the job was to end."""

    @property
    def ended_by(self) -> str:
        """Why it was told to end; `cancel` where it isn't to start again anywhere."""
        ...


class Splitting:
    """The lots that run.

    Args:
        books: what the parts of a supervisor share.
        joining: who has made them.
    """

    def __init__(self, books: Books, joining: Joining) -> None:
        self._books = books
        self._joining = joining

    def stop(self, call: Joined, lot: Lot) -> None:
        """A running call, marked as stopped, isn't wanted any more."""
        assert lot.executor is not None
        lot.executor.send(Stop(call.job_id, call.frame.attempt))
        if not call.is_answered and _is_done_with(call):
            self._answer_now(call, "cancelled", "The call was stopped.")
        self._stop_if_unwanted(lot)

    def look(self, now: float) -> None:
        """Answer those whose deadlines have passed, at an instant of `time.monotonic()`."""
        for lot in self._joining.running():
            for call in lot.late(now):
                if not call.stopped and lot.executor is not None:
                    lot.executor.send(Stop(call.job_id, call.frame.attempt))
                self._answer_now(call, "deadline-exceeded", "The call was not finished at its deadline.")
            self._stop_if_unwanted(lot)

    def _stop_if_unwanted(self, lot: Lot) -> None:
        if not lot.stopped and not lot.is_wanted:
            lot.stop(self._books.patience_s)

    def _answer_now(self, call: Joined, category: str, message: str) -> None:
        call.is_answered = True
        seconds = time.monotonic() - call.started_at
        function = call.frame.function
        load, attempt = self._books.load(function), call.frame.attempt
        call.caller.answer(
            Error(call.job_id, category, message, attempt, call.queue_ms, seconds * 1000, load=load)
        )
        self._books.metrics.ended(function, category, seconds, call.cost)

    # ------------------------------------------------------------------ what its executor says

    def running(self, executor: ExecutorProcess, job_id: str) -> Joined | None:
        """The call of that name that runs in a lot there."""
        call = self._books.calls.get(job_id)
        if isinstance(call, Joined) and call.lot is not None and call.lot.job_id in executor.calls:
            return call if call.started_at else None
        return None

    def finished(self, call: Joined, frame: Done | Failed) -> None:
        """One of the calls is through."""
        assert call.lot is not None
        call.lot.settle(call)
        self._books.forget(call)
        if call.is_answered:
            return
        function = call.frame.function
        times = self._books.service_times[function]
        answer, outcome = answer_of(call, frame, self._books.load(function), times)
        call.caller.answer(answer)
        self._books.metrics.ended(function, outcome, frame.exec_s, call.cost)
        call.lot.has_succeeded |= outcome == "succeeded"

    def ended(self, executor: ExecutorProcess, frame: BatchEnded) -> None:
        """All of them are, and the slot is free."""
        lot = executor.calls.get(frame.job_id)
        if not isinstance(lot, Lot):
            log.warning("executor %d answered for an unknown lot", executor.index)
            return
        for call in lot.parts:
            log.error("executor %d left job %s unanswered", executor.index, call.job_id)
            self._settle_lost(call, Lost(call.job_id, call.frame.attempt, charged=True), "lost", frame.exec_s)
        function = lot.frame.function
        if lot.has_succeeded:
            self._books.service_times[function].observe(frame.exec_s, lot.cost)
        self._joining.ended(lot, executor, frame.too_many)
        self._books.metrics.lot_ended(function, lot.started_with, lot.cost, len(frame.passes))

    def lost(self, lot: Lot, executor: ExecutorProcess, *, is_bystander: bool = False) -> None:
        """Its executor is gone; `is_bystander`: through another call, which ran alone there."""
        if not lot.started_at:
            self._joining.take_back(lot, executor)
            return
        self._joining.gone(lot, executor)
        for call in lot.parts:
            is_culprit = executor.killed_for is call or (executor.killed_for is lot and lot.is_to_blame(call))
            load = self._books.load(call.frame.function)
            answer, outcome, seconds = answer_of_lost(
                call, executor, load, is_culprit=is_culprit, is_bystander=is_bystander
            )
            self._settle_lost(call, answer, outcome, seconds)

    def _settle_lost(self, call: Joined, answer: Error | Lost, outcome: str, seconds: float) -> None:
        assert call.lot is not None
        call.lot.settle(call)
        self._books.forget(call)
        if not call.is_answered:
            call.caller.answer(answer)
            self._books.metrics.ended(call.frame.function, outcome, seconds, call.cost)


def _is_done_with(call: Joined) -> bool:
    """Whether who has stopped it wants no other start: that would have to wait for the end of this one."""
    return not call.is_job or cast(Holder, call.caller).ended_by == "cancel"
