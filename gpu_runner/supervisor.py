"""The supervisor: takes calls and jobs, holds them to their limits, answers for what is lost.

Everything happens in one event loop, so the order of events is the order of facts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gpu_runner.batching.joining import Joining
from gpu_runner.batching.splitting import Splitting
from gpu_runner.books import Books
from gpu_runner.calls import Caller, LocalCall
from gpu_runner.capacity import Figures, cost_of
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.endings import Endings
from gpu_runner.enforcement import TICK_S, enforce, patience_s
from gpu_runner.frames import (
    LONGEST_BUSY_S,
    BatchEnded,
    Credit,
    Done,
    Failed,
    FromExecutor,
    Invoke,
    Loaded,
    LoadFailed,
    Loading,
    Ready,
    Reported,
    Streamed,
    Uninvoke,
    Unloaded,
)
from gpu_runner.intake import Intake
from gpu_runner.invoking.invocations import Invocations
from gpu_runner.lots import Joined, Lot
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.placing import Placing
from gpu_runner.residency.residence import Residence
from gpu_runner.services import degraded_everywhere, services_of
from gpu_runner.slots import Slots
from headrace.capacity import Report
from headrace.link.frames import Call, Handed, Handover, Pong, Service
from headrace.sdk import Function

log = logging.getLogger(__name__)


class Supervisor:
    """Runs calls on executors.

    Args:
        functions: what this runner serves, by name.
        metrics: where executions are counted.
        brief_wait: the longest wait for a slot while executors are busy, in seconds.
        on_services: called when what can be served has changed.
        device_cap: the most calls that may use models at once; 0: as many as have slots.
        memory: what all executors may take together, in bytes; 0: a share of what their device has.
        load_timeout: after how many seconds an executor that loads a model is killed.
    """

    def __init__(
        self,
        functions: Mapping[str, Function[Any, Any]],
        metrics: RunnerMetrics,
        brief_wait: float,
        on_services: Callable[[], None],
        device_cap: int = 0,
        memory: int = 0,
        load_timeout: float = 600.0,
    ) -> None:
        self.ready = asyncio.Event()
        self.device = ""
        self.on_handover: Callable[[LocalCall, Handover], None] | None = None
        """Records a running call as a job; None: such calls stay what they are."""
        books = self._books = Books(functions, metrics, brief_wait, device_cap, self._keep_ticking)
        self.executors = books.executors
        self._functions = functions
        self._metrics = metrics
        self._on_services = on_services
        self._slots = books.slots
        self._service_times = books.service_times
        self._calls = books.calls
        self._parked = books.parked
        self._ticking: asyncio.TimerHandle | None = None
        self.models = books.models = Residence(
            functions, self.executors, self._waiting, self._models_changed, memory, load_timeout
        )
        self.placing = Placing(
            self.executors,
            self._slots,
            self._note_start,
            self._keep_ticking,
            self._begin_lot,
            self._hurry,
            self.models,
        )
        self.joining = Joining(books, self.placing, self._note_start)
        self._splitting = Splitting(books, self.joining)
        self._endings = Endings(books, self.placing, self.joining, self._splitting)
        self._intake = Intake(books, self.placing, self.joining, self._endings)
        self.invoking = Invocations(self.placing.resting, self._running)
        self._figures = Figures(books, self.models, self.joining.per_slot)

    # ------------------------------------------------------------------ what others may know

    @property
    def degraded(self) -> dict[str, str]:
        """Why functions can't run at present, by name."""
        return self._books.degraded

    @property
    def draining(self) -> bool:
        """Whether nothing new is taken."""
        return self._books.draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._books.draining = draining

    def services(self) -> tuple[Service, ...]:
        """What this runner tells gateways that it serves."""
        return services_of(self._functions, self._books.slots_for, self.degraded, self.joining.per_slot())

    def call_of(self, job_id: str) -> LocalCall | None:
        """The call of that name that waits or runs here."""
        return self._calls.get(job_id)

    def loads(self) -> dict[str, int]:
        """Running and waiting calls of each function's slots."""
        return {name: self._books.load(name) for name in self._slots}

    def state(self) -> Pong:
        """What gateways hear each second."""
        means = {name: times.mean for name, times in self._service_times.items() if times.mean}
        return Pong(self.loads(), self.draining, self.degraded, means, self._figures.capacity())

    def report(self) -> Report:
        """What Postgres is told each second."""
        return self._figures.report(self.device)

    def groups(self) -> Iterable[Slots]:
        """The groups of slots, each once."""
        return {slots.name: slots for slots in self._slots.values()}.values()

    # ------------------------------------------------------------------ calls

    def take(self, frame: Call, caller: Caller) -> None:
        """Start a call, let it wait, or refuse it."""
        self._intake.take(frame, caller)

    def stop(self, job_id: str, caller: Caller) -> None:
        """This caller doesn't want the call any more: forget it if it waits, ask it to end if it runs."""
        for calls in (self._calls, self._parked):
            if (call := calls.get(job_id)) and call.caller is caller:
                self._endings.stop(call)

    def hand_over(self, frame: Handover, caller: Caller) -> None:
        """The caller's hold is ending: give a call back that waits, have one that runs recorded as a job.

        One that has ended, or was stopped, is left alone, as its answer is on its way; and so is one whose
        items the caller has had.
        """
        call = self._calls.get(frame.job_id)
        if call is None or call.caller is not caller or call.stopped or call.frame.credit:
            return
        if isinstance(call, Joined) and call.is_answered:
            return
        if self._endings.withdraw(call):
            self._metrics.handed_over(call.frame.function, "withdrawn")
            caller.answer(Handed(frame.job_id, withdrawn=True))
        elif self.on_handover is not None:
            self.on_handover(call, frame)

    def grant(self, job_id: str, items: int, caller: Caller) -> None:
        """The caller has room for so many more items of a stream."""
        call = self._calls.get(job_id)
        if call is not None and call.caller is caller and call.executor is not None:
            call.executor.send(Credit(job_id, call.frame.attempt, items))

    def kill(self, job_id: str, caller: Caller) -> None:
        """Stop a call for certain, and all that runs in its executor with it."""
        for calls in (self._calls, self._parked):
            if (call := calls.get(job_id)) and call.caller is caller:
                self._endings.stop(call)
                if call.executor is not None:
                    call.executor.kill(call)

    def caller_lost(self, caller: Caller) -> None:
        """A gateway is gone: the work that only it waited for is stopped."""
        self._endings.caller_lost(caller)

    def _begin_lot(self, lot: Lot, slots: Slots, executor: ExecutorProcess) -> None:
        self.joining.begin(lot, slots, executor)

    def _hurry(self, slots: Slots) -> None:
        self.joining.hurry(slots)

    def _note_start(self, call: LocalCall, executor: ExecutorProcess) -> None:
        call.start(executor, self._books.patience_s)
        for part in call.parts:
            self._metrics.started(part.frame.function, part.queue_ms / 1000, cost_of(part))
        self._keep_ticking()

    # ------------------------------------------------------------------ jobs

    def claimable(self) -> list[str]:
        """The functions of which jobs may be claimed now."""
        if self.draining or self._books.is_cold():
            return []
        models, books = self.models, self._books
        sound = [name for name in self._functions if name not in self.degraded]
        return [name for name in sound if not models.is_blocked(name) and not books.busy_s(name)]

    def expected_s(self, function: str) -> float:
        """The median of a function's execution times, in seconds; 0 while it isn't known."""
        return self._service_times[function].median

    def slots_of(self, function: str) -> Slots:
        """The slots that a function runs in."""
        return self._slots[function]

    def take_job(self, frame: Call, caller: Caller) -> None:
        """Start a claimed job, in the slot that was kept for it."""
        self._intake.take_job(frame, caller)

    # ------------------------------------------------------------------ executors

    def executor_ready(self, executor: ExecutorProcess, ready: Ready) -> None:
        """An executor has loaded its models."""
        self.device = ready.device
        self._metrics.device = ready.device.partition(":")[0]
        self._books.load_s = max(0.5, ready.load_s)
        self._books.patience_s = patience_s(ready.load_s)
        log.info("executor %d is ready on %s after %.2f s", executor.index, ready.device, ready.load_s)
        self.ready.set()
        self.models.ready(executor, ready)
        self._note_degraded()
        self.placing.start_waiting()

    def _note_degraded(self) -> None:
        degraded = degraded_everywhere(self.executors)
        if degraded != self.degraded:
            self._books.degraded = degraded
            self._endings.give_back_unable()
            self._on_services()

    def executor_said(self, executor: ExecutorProcess, frame: FromExecutor) -> None:
        """An executor has finished a call, tells how far it is, or what has become of a model."""
        match frame:
            case Done() | Failed():
                if isinstance(frame, Failed) and frame.retry_after_s > 0:
                    self._note_busy(executor, frame)
                self._endings.finished(executor, frame)
                if frame.job_id in self.invoking.open:
                    self.invoking.ended(frame.job_id, frame if isinstance(frame, Failed) else None)
            case BatchEnded():
                self._splitting.ended(executor, frame)
            case Reported() | Streamed():
                call = self._running(executor, frame.job_id)
                if call is not None and (call.is_job or call.frame.credit):  # else nobody follows it
                    call.caller.tell(frame)
            case Invoke() | Uninvoke():
                self.invoking.said(executor, frame)
            case Loading() | Loaded() | LoadFailed() | Unloaded():
                self.models.said(executor, frame)
            case Ready():
                pass

    def _running(self, executor: ExecutorProcess, job_id: str) -> LocalCall | None:
        """The call of that name that runs there, by itself or joined with others."""
        return executor.calls.get(job_id) or self._splitting.running(executor, job_id)

    def _note_busy(self, executor: ExecutorProcess, failed: Failed) -> None:
        """A function has found what it needs elsewhere busy: nothing of it starts until it should be free."""
        call = self._running(executor, failed.job_id)
        if call is None:
            return
        name, seconds = call.frame.function, min(failed.retry_after_s, LONGEST_BUSY_S)
        if seconds <= self._books.busy_s(name):
            return
        log.info("function %s takes nothing for %.1f s, as what it needs is busy", name, seconds)
        self._books.busy_until[name] = time.monotonic() + seconds
        self._endings.give_back_busy(name)
        asyncio.get_running_loop().call_later(seconds, self._note_free, name)

    def _note_free(self, name: str) -> None:
        if not self._books.busy_s(name):  # else it has become busy for longer meanwhile
            self._books.busy_until.pop(name, None)
            self.placing.hear([self._slots[name]])

    def _models_changed(self) -> None:
        """Some models are there, or can't be, that weren't so before."""
        self._note_degraded()
        self.placing.start_waiting()

    def _waiting(self) -> Iterator[tuple[LocalCall, Slots]]:
        """The calls that wait, with the slots that they wait for."""
        for slots in self.groups():
            for call in (*slots.turns.arrived, *slots.waiting):
                yield call, slots
        for call in self.placing.alone:
            yield call, self._slots[call.frame.function]

    def executor_lost(self, executor: ExecutorProcess) -> None:
        """An executor's process has ended: its slots are free, its calls are settled."""
        self._endings.lost(executor)
        if self.invoking.open:
            self.invoking.lost(executor)

    # ------------------------------------------------------------------ time

    def _keep_ticking(self) -> None:
        self._books.idle.clear()
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        try:
            self._keep_limits(time.monotonic())
        finally:  # whatever is wrong with one call, the limits of the others are kept
            if self._calls:
                self._keep_ticking()

    def _keep_limits(self, now: float) -> None:
        self._endings.overdue(now)
        self._splitting.look(now)
        self.models.look_if_short()
        for executor in self.executors:
            enforce(executor, now)

    async def drain(self, seconds: float) -> None:
        """Take nothing new; return when the calls have ended, or after so many seconds."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._books.idle.wait()
        except TimeoutError:
            log.warning("drain: %d calls are cut off after %g s", len(self._calls), seconds)
