"""What running calls have asked for, from the question to the answer.

Each question is a task that makes a job and waits for its end. When a call has ended, what it still waited
for is cancelled; not where the call is to start again, or may, as the next attempt takes it over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gpu_runner.calls import LocalCall
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.frames import Failed, Invoke, Invoked, Uninvoke
from gpu_runner.invoking.resting import Resting
from gpu_runner.lots import Joined, Lot

log = logging.getLogger(__name__)

_LAST_CANCELS_S: Final = 2.0


class Callee(Protocol):
    """Who makes the jobs."""

    async def output(self, asked: Invoke, call: LocalCall, made: list[str]) -> Invoked:
        """What has become of it; `made` gets the ids of the jobs that are made for it."""
        ...

    async def cancel(self, job_id: str, parent: LocalCall) -> None:
        """Cancel one of them."""
        ...


@dataclass(eq=False, slots=True)
class _Question:
    """One of them: who asks, where that runs, and what has been done for it."""

    asked: Invoke
    call: LocalCall
    holder: LocalCall
    executor: ExecutorProcess
    made: list[str] = field(default_factory=list[str])
    task: asyncio.Task[None] | None = None


class Invocations:
    """All open questions of a runner's calls.

    Args:
        resting: takes the slots of those who wait.
        find: the running call of that name in an executor.
    """

    def __init__(self, resting: Resting, find: Callable[[ExecutorProcess, str], LocalCall | None]) -> None:
        self.callee: Callee | None = None
        """None: there is no ledger, and nobody can be called."""
        self.open: dict[str, dict[int, _Question]] = {}
        """By the calls' names, and by the questions' numbers."""
        self._resting = resting
        self._find = find
        self._cancelling: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def said(self, executor: ExecutorProcess, frame: Invoke | Uninvoke) -> None:
        """A running call asks, or doesn't wait any more."""
        if isinstance(frame, Invoke):
            self._ask(executor, frame)
            return
        question = self.open.get(frame.job_id, {}).get(frame.number)
        if question is None or question.asked.attempt != frame.attempt or question.call.stopped:
            return  # it ends, which decides what becomes of this
        self._drop(question)
        self._resting.gave_up(question.holder, executor)
        self._withdraw(question)

    def ended(self, job_id: str, failed: Failed | None) -> None:
        """A call is through, and has failed or not."""
        is_retryable = failed is not None and failed.retryable
        for question in list(self.open.get(job_id, {}).values()):
            call, holder = question.call, question.holder
            self._drop(question)
            self._tell_stopped(question.executor, question.asked)
            if question.executor.calls.get(holder.job_id) is holder:  # others of its lot go on
                self._resting.gave_up(holder, question.executor)
            goes_on = is_retryable and call.frame.attempt < call.manifest.attempts
            self._end(question, is_to_start_again=goes_on)

    def lost(self, executor: ExecutorProcess) -> None:
        """An executor's process has ended, and what ran there may start again; not what it was killed for."""
        lost = [one for all_of in self.open.values() for one in all_of.values() if one.executor is executor]
        for question in lost:
            self._drop(question)
            self._end(question, is_to_start_again=not _is_killed(question))

    async def close(self) -> None:
        """Wait for nothing any more, as this process ends; what is there goes on for the next attempts.

        What is asked from now on gets no answer: the executors are about to end.
        """
        self._is_closed = True
        last = set(self._cancelling)
        for question in [one for all_of in self.open.values() for one in all_of.values()]:
            self._drop(question)
            if question.task is not None:
                question.task.cancel()
                last.add(question.task)
        if last:
            await asyncio.wait(last, timeout=_LAST_CANCELS_S)
        for task in self._cancelling:
            task.cancel()

    # ------------------------------------------------------------------ from the question to the answer

    def _ask(self, executor: ExecutorProcess, asked: Invoke) -> None:
        if self._is_closed:
            return
        call = self._find(executor, asked.job_id)
        if call is None or call.frame.attempt != asked.attempt:
            self._tell_stopped(executor, asked)  # a task that its body has left behind
            return
        holder = call.lot if isinstance(call, Joined) and call.lot is not None else call
        question = _Question(asked, call, holder, executor)
        self.open.setdefault(asked.job_id, {})[asked.number] = question
        question.task = asyncio.create_task(self._answer(question))
        self._resting.asked(holder, executor)

    async def _answer(self, question: _Question) -> None:
        asked = question.asked
        name = asked.job_id, asked.attempt, asked.number
        if self.callee is None:
            answer = Invoked(*name, category="no-ledger", message="There is no ledger here to call by.")
        else:
            try:
                answer = await self.callee.output(asked, question.call, question.made)
            except Exception:
                log.exception("job %s could not call %s", asked.job_id, asked.function)
                answer = Invoked(*name, category="internal-error", message="The call could not be made.")
        if self._is_open(question):  # else the body has given up while the answer was on its way
            self._resting.answered(
                question.holder, question.executor, lambda: self._deliver(question, answer)
            )

    def _deliver(self, question: _Question, answer: Invoked) -> None:
        self._drop(question)
        question.executor.send(answer)

    def _is_open(self, question: _Question) -> bool:
        return self.open.get(question.asked.job_id, {}).get(question.asked.number) is question

    def _drop(self, question: _Question) -> None:
        if self._is_open(question):
            questions = self.open[question.asked.job_id]
            del questions[question.asked.number]
            if not questions:
                del self.open[question.asked.job_id]

    def _tell_stopped(self, executor: ExecutorProcess, asked: Invoke) -> None:
        executor.send(
            Invoked(
                *(asked.job_id, asked.attempt, asked.number),
                category="job-cancelled",
                message="The calling call has ended.",
            )
        )

    # ------------------------------------------------------------------ what nobody waits for

    def _end(self, question: _Question, *, is_to_start_again: bool) -> None:
        """The call that has asked is through here; whether it starts again, if nobody has ended it."""
        call = question.call
        why: Any = getattr(call.caller, "ended_by", "")  # of a job, and of one that is becoming a job
        if why == "cancel":
            is_to_start_again = False
        elif why or call.stopped:  # by its runner's own doing, or as it is another's by now
            is_to_start_again = call.is_job or call.is_replaced
        if not is_to_start_again:
            self._withdraw(question)
        elif question.task is not None:
            question.task.cancel()

    def _withdraw(self, question: _Question) -> None:
        """Cancel what was made for it."""
        if question.task is not None:
            question.task.cancel()  # at once: it may be about to go on with an answer
        task = asyncio.create_task(self._cancel(question))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _cancel(self, question: _Question) -> None:
        if question.task is not None:
            await asyncio.wait({question.task})  # no more can be made for it then
        if self.callee is not None and question.made:
            await self.callee.cancel(question.made[-1], question.call)


def _is_killed(question: _Question) -> bool:
    """Whether its executor was killed because of the call that has asked, which has failed by that."""
    call, holder, culprit = question.call, question.holder, question.executor.killed_for
    if isinstance(holder, Lot) and isinstance(call, Joined) and culprit is holder:
        return holder.is_to_blame(call)
    return culprit is call
