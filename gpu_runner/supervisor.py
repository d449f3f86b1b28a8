"""The supervisor: takes calls, gives them slots, holds them to their limits, answers for what is lost.

Everything happens in one event loop, so the order of events is the order of facts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpu_runner.answers import answer_of, answer_of_killed
from gpu_runner.calls import Caller, DirectCall
from gpu_runner.executors import ExecutorProcess
from gpu_runner.frames import Done, Failed, FromExecutor, Ready, Run, Stop
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.slots import MAIN, ServiceTime, Slots, slots_for
from headrace.link.frames import Call, Lost, Pong, Refused, Service, Started
from headrace.sdk import Function

log = logging.getLogger(__name__)

_TICK_S = 0.05  # how exactly limits and waits end; only while there are calls
_COLD_RETRY_S = 5.0
_SUPERSEDED_RETRY_S = 0.2
_ENDS = (Done, Failed)


class Supervisor:
    """Runs calls on executors.

    Args:
        functions: what this runner serves, by name.
        metrics: where executions are counted.
        brief_wait: the longest wait for a slot while executors are busy, in seconds.
        on_services: called when what can be served has changed.
    """

    def __init__(
        self,
        functions: Mapping[str, Function[Any, Any]],
        metrics: RunnerMetrics,
        brief_wait: float,
        on_services: Callable[[], None],
    ) -> None:
        self.executors: list[ExecutorProcess] = []
        self.degraded: dict[str, str] = {}
        self.draining = False
        self.ready = asyncio.Event()
        self.device = ""
        self._functions = functions
        self._metrics = metrics
        self._brief_wait = brief_wait
        self._on_services = on_services
        self._slots = slots_for(functions.values())
        self._service_times = {name: ServiceTime() for name in functions}
        self._calls: dict[str, DirectCall] = {}
        self._load_s = _COLD_RETRY_S
        self._idle = asyncio.Event()
        self._idle.set()
        self._ticking: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ what others may know

    def services(self) -> tuple[Service, ...]:
        """What this runner tells gateways that it serves."""
        executors = max(1, len(self.executors))
        return tuple(
            Service(
                name,
                function.manifest.interface,
                self._slots[name].per_executor * executors,
                self.degraded.get(name, ""),
            )
            for name, function in self._functions.items()
        )

    def loads(self) -> dict[str, int]:
        """Running and waiting calls of each function's slots."""
        return {name: slots.load for name, slots in self._slots.items()}

    def state(self) -> Pong:
        """What gateways hear each second."""
        return Pong(self.loads(), self.draining, self.degraded)

    def groups(self) -> Iterable[Slots]:
        """The groups of slots, each once."""
        return {slots.name: slots for slots in self._slots.values()}.values()

    # ------------------------------------------------------------------ taking calls

    def take(self, frame: Call, caller: Caller) -> None:
        """Start a call, let it wait, or refuse it."""
        function = self._functions.get(frame.function)
        if function is None or function.manifest.interface != frame.interface:
            caller.answer(Refused(frame.job_id, "unknown-interface"))
            return
        call = DirectCall(frame, caller, function.manifest)
        call.expected_s = self._service_times[frame.function].mean
        slots = self._slots[frame.function]
        if frame.job_id in self._calls:
            # Its gateway lost the link, dialled again, and this end hasn't noticed the loss yet.
            self.stop(frame.job_id)
            self._refuse(call, "full", _SUPERSEDED_RETRY_S)
        elif reason := self.degraded.get(frame.function):
            self._refuse(call, "degraded", _COLD_RETRY_S, reason)
        elif self.draining:
            self._refuse(call, "draining", 1.0)
        elif executor := self._free_executor(slots):
            self._calls[frame.job_id] = call
            self._start(call, slots, executor)
        elif not slots.waiting and (executor := self._short_executor(slots, call)):
            self._calls[frame.job_id] = call
            self._hand_ahead(call, slots, executor)
        else:
            self._wait(call, slots)

    def _wait(self, call: DirectCall, slots: Slots) -> None:
        longest = call.frame.wait_ms / 1000
        if not self._is_cold():
            longest = min(longest, self._brief_wait)
            predicted = slots.predicted_wait(len(self.executors))
            if predicted > longest or not slots.has_memory_for(call):
                self._refuse(call, "full", predicted)
                return
        elif not slots.has_memory_for(call):
            self._refuse(call, "cold", self._load_s)
            return
        call.wait_until = call.received_at + longest
        self._calls[call.job_id] = call
        slots.push(call)
        self._keep_ticking()

    def _is_cold(self) -> bool:
        return not any(executor.is_ready for executor in self.executors)

    def _refuse(self, call: DirectCall, reason: str, retry_after_s: float, detail: str = "") -> None:
        self._metrics.refused(call.frame.function, reason)
        slots = self._slots[call.frame.function]
        call.caller.answer(Refused(call.job_id, reason, slots.load, retry_after_s, detail))

    def _free_executor(self, slots: Slots) -> ExecutorProcess | None:
        best: ExecutorProcess | None = None
        for executor in self.executors:
            if executor.is_ready and executor.busy[slots.name] < slots.per_executor:
                if not executor.calls:
                    return executor
                if best is None or len(executor.calls) < len(best.calls):
                    best = executor
        return best

    def _short_executor(self, slots: Slots, call: DirectCall) -> ExecutorProcess | None:
        """An executor to which the call can be handed while it runs another, since both are short."""
        if slots.name != MAIN:
            return None
        able = [one for one in self.executors if one.is_ready and one.ahead.has_room_for(call)]
        return min(able, key=lambda one: len(one.ahead), default=None)

    def _hand_ahead(self, call: DirectCall, slots: Slots, executor: ExecutorProcess) -> None:
        call.executor = executor
        slots.handed_ahead(call)
        executor.ahead.add(call)
        executor.send(_run(call))
        self._keep_ticking()

    def _promote(self, executor: ExecutorProcess, slots: Slots) -> None:
        """The call after the one that has ended has started by now, or will before anything else."""
        call = executor.ahead.promote()
        slots.promoted()
        self._note_start(call, slots, executor)

    def _start(self, call: DirectCall, slots: Slots, executor: ExecutorProcess) -> None:
        slots.started(call)
        if slots.name == MAIN:
            executor.ahead.running = call
        executor.send(_run(call))
        self._note_start(call, slots, executor)

    def _note_start(self, call: DirectCall, slots: Slots, executor: ExecutorProcess) -> None:
        call.start(executor)
        executor.busy[slots.name] += 1
        executor.calls[call.job_id] = call
        frame = call.frame
        self._metrics.started(frame.function, call.queue_ms / 1000)
        self._keep_ticking()

    def _start_waiting(self) -> None:
        for slots in self.groups():
            while slots.waiting and (executor := self._free_executor(slots)):
                self._start(slots.pop(), slots, executor)

    def _give_next(self, executor: ExecutorProcess, slots: Slots) -> None:
        """Use the slot that an executor has freed."""
        if slots.name == MAIN and executor.ahead:
            self._promote(executor, slots)
        elif slots.waiting and executor.is_ready:  # it may have been killed meanwhile
            self._start(slots.pop(), slots, executor)
        while slots.waiting and self._may_hand_ahead(executor, slots):
            self._hand_ahead(slots.pop(), slots, executor)

    def _may_hand_ahead(self, executor: ExecutorProcess, slots: Slots) -> bool:
        return slots.name == MAIN and executor.is_ready and executor.ahead.has_room_for(slots.waiting[0])

    # ------------------------------------------------------------------ ending calls

    def stop(self, job_id: str) -> None:
        """Nobody waits for this call any more: forget it if it waits, ask it to end if it runs."""
        call = self._calls.get(job_id)
        if call is None or call.stopped:
            return
        call.stopped = True
        if call.executor is None:
            self._slots[call.frame.function].remove(call)
            self._forget(call)
        else:
            call.executor.send(Stop(job_id))

    def caller_lost(self, caller: Caller) -> None:
        """A gateway is gone: the work that only it waited for is stopped."""
        for call in [call for call in self._calls.values() if call.caller is caller]:
            self.stop(call.job_id)

    def executor_ready(self, executor: ExecutorProcess, ready: Ready) -> None:
        """An executor has loaded its models."""
        self.device = ready.device
        self._load_s = max(0.5, ready.load_s)
        log.info("executor %d is ready on %s after %.2f s", executor.index, ready.device, ready.load_s)
        self.ready.set()
        executor.degraded = ready.degraded
        self._note_degraded()
        self._start_waiting()

    def _note_degraded(self) -> None:
        """A function can't run when one of the executors that may get its calls can't run it."""
        degraded: dict[str, str] = {}
        for executor in self.executors:
            if executor.is_ready:
                degraded.update(executor.degraded)
        if degraded != self.degraded:
            self.degraded = degraded
            self._on_services()

    def executor_said(self, executor: ExecutorProcess, frame: FromExecutor) -> None:
        """An executor has finished a call."""
        if not isinstance(frame, _ENDS):
            return  # progress has no reader on the direct path
        call = executor.calls.get(frame.job_id)
        if call is None:
            log.warning("executor %d answered for an unknown call", executor.index)
            return
        slots = self._release(call, executor)
        self._give_next(executor, slots)
        answer, outcome = answer_of(call, frame, slots.load)
        call.caller.answer(answer)
        if outcome == "succeeded":
            self._service_times[call.frame.function].observe(frame.exec_s)
        self._metrics.ended(call.frame.function, outcome, frame.exec_s)

    def executor_lost(self, executor: ExecutorProcess) -> None:
        """An executor's process has ended: its slots are free, its calls are settled."""
        culprit = executor.killed_for
        self._take_back(executor)
        for call in list(executor.calls.values()):
            slots = self._release(call, executor)
            seconds = time.monotonic() - call.started_at
            if call is culprit:
                answer, outcome = answer_of_killed(call, seconds, slots.load)
                call.caller.answer(answer)
            else:
                # A crash of unknown cause charges everyone in it; a neighbour's kill charges nobody else.
                log.warning(
                    "executor %d was lost under job %s of %s (attempt %d)",
                    executor.index,
                    call.job_id,
                    call.frame.function,
                    call.frame.attempt,
                )
                call.caller.answer(Lost(call.job_id, call.frame.attempt, culprit is None, slots.load))
                outcome = "lost"
            self._metrics.ended(call.frame.function, outcome, seconds)
        self._metrics.restarted()
        self._start_waiting()  # what was taken back may start elsewhere

    def _take_back(self, executor: ExecutorProcess) -> None:
        """What was handed ahead never started: it waits again, before all others."""
        for call in executor.ahead.take_back():
            slots = self._slots[call.frame.function]
            slots.returned(call)
            if call.stopped:
                self._forget(call)
            else:
                call.executor = None
                call.wait_until = call.hold_until
                slots.push_back(call)

    def _release(self, call: DirectCall, executor: ExecutorProcess) -> Slots:
        slots = self._slots[call.frame.function]
        del executor.calls[call.job_id]
        if slots.name == MAIN:
            executor.ahead.running = None
        executor.busy[slots.name] -= 1
        slots.ended(call)
        self._forget(call)
        return slots

    def _forget(self, call: DirectCall) -> None:
        del self._calls[call.job_id]
        if not self._calls:
            self._idle.set()

    # ------------------------------------------------------------------ time

    def _keep_ticking(self) -> None:
        self._idle.clear()
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        now = time.monotonic()
        cold = self._is_cold()
        for slots in self.groups():
            if cold:
                slots.wait_for_process()
            for call in slots.overdue(now):
                self._forget(call)
                self._refuse(call, "cold" if cold else "full", self._load_s if cold else self._brief_wait)
        for executor in self.executors:
            for call in executor.calls.values():
                if now >= call.kill_at and executor.killed_for is None:
                    log.warning(
                        "job %s is past its hard limit: executor %d is killed", call.job_id, executor.index
                    )
                    executor.kill(call)
                elif not call.announced:
                    call.announced = True
                    call.caller.answer(Started(call.job_id, call.frame.attempt))
        if self._calls:
            self._keep_ticking()

    async def drain(self, seconds: float) -> None:
        """Take nothing new; return when the calls have ended, or after so many seconds."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            log.warning("drain: %d calls are cut off after %g s", len(self._calls), seconds)


def _run(call: DirectCall) -> Run:
    frame = call.frame
    soft_s = call.manifest.budget.soft_limit
    return Run(frame.job_id, frame.function, frame.input, frame.attempt, soft_s, call.deadline_at)
