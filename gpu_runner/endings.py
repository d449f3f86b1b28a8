"""How calls end: stopped, through, or lost with their executor."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from gpu_runner.answers import answer_of, answer_of_lost
from gpu_runner.batching.joining import Joining
from gpu_runner.batching.splitting import Splitting
from gpu_runner.books import COLD_RETRY_S, Books
from gpu_runner.calls import Caller, LocalCall
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.frames import Done, Failed, Stop
from gpu_runner.lots import Joined, Lot
from gpu_runner.placing import Placing
from gpu_runner.slots import Slots

log = logging.getLogger(__name__)


class Endings:
    """Ends calls, and answers for them.

    Args:
        books: what the parts of a supervisor share.
        placing: who gets back their slots.
        joining: where calls of a lot are that waits.
        splitting: where those of a lot are that runs.
    """

    def __init__(self, books: Books, placing: Placing, joining: Joining, splitting: Splitting) -> None:
        self._books = books
        self._placing = placing
        self._joining = joining
        self._splitting = splitting

    def stop(self, call: LocalCall) -> None:
        """Forget a call that waits; ask one that runs to end."""
        if call.stopped:
            return
        call.stop(self._books.patience_s)
        lot = call.lot if isinstance(call, Joined) else None
        if isinstance(call, Joined) and lot is not None and lot.started_at:
            self._splitting.stop(call, lot)
        elif call.executor is not None:
            call.executor.send(Stop(call.job_id, call.frame.attempt))
        else:
            self._withdraw(call)
            if call.is_job:
                self._books.give_back(call)

    def supersede(self, call: LocalCall) -> None:
        """A gateway sends a direct call again that is here: the loss of its link isn't noticed here yet."""
        if not call.is_job:  # else it isn't that gateway's any more
            self.replace(call)

    def replace(self, call: LocalCall) -> None:
        """Stop an earlier start of a call that has come again: what it has called is the next one's."""
        if not call.stopped:  # else nobody has wanted it
            call.is_replaced = True
            self.stop(call)

    def withdraw(self, call: LocalCall) -> bool:
        """Take out a direct call that waits for its start; returns whether it does."""
        is_joined = isinstance(call, Joined) and call.lot is not None
        is_waiting = not call.started_at if is_joined else call.executor is None
        if is_waiting:
            self._withdraw(call)
        return is_waiting

    def _withdraw(self, call: LocalCall) -> None:
        """Take a call out of wherever it waits."""
        books = self._books
        slots = books.slots[call.frame.function]
        if books.parked.get(call.job_id) is call:
            del books.parked[call.job_id]
        elif isinstance(call, Joined) and call.lot is not None:
            self._joining.drop(call)
        elif self._placing.alone.drop(call):
            books.forget(call)
            self._placing.start_waiting()
        elif call in slots.turns.arrived:
            slots.turns.arrived.remove(call)
            slots.turns.look()
            books.forget(call)
        else:
            slots.remove(call)
            books.forget(call)

    def finished(self, executor: ExecutorProcess, frame: Done | Failed) -> None:
        """An execution came to its own end."""
        call = executor.calls.get(frame.job_id)
        if call is None:
            if (joined := self._splitting.running(executor, frame.job_id)) is not None:
                self._splitting.finished(joined, frame)
            else:
                log.warning("executor %d answered for an unknown call", executor.index)
            return
        slots = self._release(call, executor)
        self._placing.give_next(executor, slots)
        times = self._books.service_times[call.frame.function]
        if isinstance(frame, Done):
            times.observe(frame.exec_s, call.frame.cost)
        answer, outcome = answer_of(call, frame, self._books.load_of_slots(call.frame.function), times)
        call.caller.answer(answer)
        self._books.metrics.ended(call.frame.function, outcome, frame.exec_s, call.frame.cost)

    def lost(self, executor: ExecutorProcess) -> None:
        """An executor's process has ended: its slots are free, its calls are settled."""
        books = self._books
        alone = self._placing.alone.running(executor)
        executor.closed_for = None
        self._take_back(executor)
        for call in list(executor.calls.values()):
            is_bystander = alone is not None and call is not alone
            if isinstance(call, Lot):
                self._splitting.lost(call, executor, is_bystander=is_bystander)
                continue
            self._release(call, executor)
            load = books.load_of_slots(call.frame.function)
            answer, outcome, seconds = answer_of_lost(call, executor, load, is_bystander=is_bystander)
            call.caller.answer(answer)
            books.metrics.ended(call.frame.function, outcome, seconds, call.frame.cost)
        books.metrics.restarted()
        books.models.lost(executor)
        if books.is_cold():
            self.give_back_unable()
        self._placing.start_waiting()  # what was taken back may start elsewhere

    def give_back_unable(self) -> None:
        """Another runner may run what none here can, or not soon.

        Only what is to run alone waits for the next executor: that is one job at most, and to be claimed
        again takes as long, and counts.
        """
        books = self._books
        cold = books.is_cold()
        for call in self._one_by_one(call for call in books.calls.values() if call.executor is None):
            reason = books.degraded.get(call.frame.function)
            if call.is_job and (reason or (cold and not call.alone)):
                self.stop(call)
            elif reason and not cold:
                self.stop(call)
                books.refuse(call, "degraded", COLD_RETRY_S, reason)

    def give_back_busy(self, function: str) -> None:
        """Calls that wait, of a function that would fail for now, may find another runner, or become jobs."""
        books = self._books
        waiting = [call for call in books.calls.values() if call.frame.function == function]
        for call in self._one_by_one(call for call in waiting if call.executor is None):
            if call.executor is None:  # else it has got the slot of one of those before it
                self.stop(call)
                if not call.is_job:
                    books.refuse(call, "full", books.busy_s(function))

    def _take_back(self, executor: ExecutorProcess) -> None:
        """What was handed ahead never started: it waits again, before all others."""
        for call in executor.ahead.take_back():
            slots = self._books.slots[call.frame.function]
            slots.returned(call)
            if call.is_job:  # it was handed over meanwhile, and has had a start as far as the ledger knows
                self._books.forget(call)
                self._books.give_back(call)
            elif call.stopped:
                self._books.forget(call)
            else:
                call.executor = None
                call.wait_until = call.hold_until
                slots.push_back(call)
                self._joining.hurry(slots)

    def _release(self, call: LocalCall, executor: ExecutorProcess) -> Slots:
        slots = self._books.slots[call.frame.function]
        self._placing.release(call, slots, executor)
        self._books.forget(call)
        return slots

    def caller_lost(self, caller: Caller) -> None:
        """A gateway is gone: the work that only it waited for is stopped.

        Maybe only its link is, and it starts its calls again elsewhere, where that may be done.
        """
        for call in self._one_by_one(call for call in self._books.calls.values() if call.caller is caller):
            if call.manifest.attempts > 1:  # the loss counts; how many did before isn't known here
                self.replace(call)
            else:
                self.stop(call)

    def _one_by_one(self, calls: Iterable[LocalCall]) -> Iterator[LocalCall]:
        """Calls to be ended, each if it is here still: the end of one may start others, or end them."""
        return (call for call in list(calls) if self._books.has(call))

    def overdue(self, now: float) -> None:
        """Refuse what has waited as long as it may, at an instant of `time.monotonic()`."""
        books = self._books
        self._give_up_jobs(now)
        cold = books.is_cold()
        for slots in dict.fromkeys(books.slots.values()):
            if cold:
                slots.wait_for_process()
            elif slots.waiting:
                slots.wait_for_models(books.models)
                for group in slots.kept_too_long(now):
                    self._placing.let_go(group)  # as at a claim that takes long
            for call in slots.overdue(now):
                books.forget(call)
                self._refuse_late(call, cold=cold)
        for call in self._joining.overdue(now):
            self._refuse_late(call, cold=cold)
        alone = self._placing.alone
        late = [call for call in alone if not call.is_job and call.wait_until <= now]
        for call in late:
            alone.drop(call)
            books.forget(call)
            books.refuse(call, "full", books.brief_wait)
        if late:
            self._placing.start_waiting()

    def _give_up_jobs(self, now: float) -> None:
        """Answer the jobs whose deadlines have passed while they wait.

        To the ledger a claim is a start, so they aren't given back, to be claimed again in vain: they failed.
        """
        books = self._books
        waiting = [*books.calls.values(), *books.parked.values()]
        late = [one for one in waiting if one.is_job and one.executor is None and one.deadline_at <= now]
        for call in self._one_by_one(late):
            if call.executor is None:  # else it has got the slot of one of those before it
                self._withdraw(call)
                books.give_up(call)
        for slots in {books.slots[call.frame.function] for call in late}:
            self._placing.share_around(slots)

    def _refuse_late(self, call: LocalCall, *, cold: bool) -> None:
        books = self._books
        function = call.frame.function
        if cold:
            books.refuse(call, "cold", books.load_s)
        elif books.models.is_cold(function):
            books.models.ask(function)
            books.refuse(call, "cold", books.models.wait_s(function) or COLD_RETRY_S)
        else:
            books.refuse(call, "full", books.brief_wait)
