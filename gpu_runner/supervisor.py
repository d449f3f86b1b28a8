"""The supervisor: takes calls and jobs, holds them to their limits, answers for what is lost.

Everything happens in one event loop, so the order of events is the order of facts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpu_runner.answers import answer_of, answer_of_lost
from gpu_runner.calls import Caller, LocalCall
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.enforcement import TICK_S, enforce, patience_s
from gpu_runner.frames import FromExecutor, Ready, Reported, Stop
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.placing import Placing
from gpu_runner.service_times import ServiceTime
from gpu_runner.services import degraded_everywhere, services_of
from gpu_runner.slots import MAIN, Slots, slots_for
from headrace.link.frames import Call, Lost, Pong, Refused, Service
from headrace.sdk import Function

log = logging.getLogger(__name__)

_COLD_RETRY_S = 5.0
_SUPERSEDED_RETRY_S = 0.2


class Supervisor:
    """Runs calls on executors.

    Args:
        functions: what this runner serves, by name.
        metrics: where executions are counted.
        brief_wait: the longest wait for a slot while executors are busy, in seconds.
        on_services: called when what can be served has changed.
        device_cap: the most calls that may use models at once; 0: as many as have slots.
    """

    def __init__(
        self,
        functions: Mapping[str, Function[Any, Any]],
        metrics: RunnerMetrics,
        brief_wait: float,
        on_services: Callable[[], None],
        device_cap: int = 0,
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
        self._slots = slots_for(functions.values(), device_cap)
        self._service_times = {name: ServiceTime() for name in functions}
        self._calls: dict[str, LocalCall] = {}
        self._parked: dict[str, LocalCall] = {}
        self._load_s = _COLD_RETRY_S
        self._patience_s = patience_s(0.0)
        self._idle = asyncio.Event()
        self._idle.set()
        self._ticking: asyncio.TimerHandle | None = None
        self.placing = Placing(self.executors, self._slots, self._note_start, self._keep_ticking)

    # ------------------------------------------------------------------ what others may know

    def services(self) -> tuple[Service, ...]:
        """What this runner tells gateways that it serves."""
        return services_of(self._functions, self._slots, len(self.executors), self.degraded)

    def call_of(self, job_id: str) -> LocalCall | None:
        """The call of that name that waits or runs here."""
        return self._calls.get(job_id)

    def loads(self) -> dict[str, int]:
        """Running and waiting calls of each function's slots."""
        return {name: slots.load_in_room for name, slots in self._slots.items()}

    def state(self) -> Pong:
        """What gateways hear each second."""
        means = {name: times.mean for name, times in self._service_times.items() if times.mean}
        return Pong(self.loads(), self.draining, self.degraded, means)

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
        call = LocalCall(frame, caller, function.manifest)
        call.expected_s = self._service_times[frame.function].mean
        slots = self._slots[frame.function]
        if frame.job_id in self._calls:
            # Its gateway lost the link, dialled again, and this end hasn't noticed the loss yet.
            self._stop(self._calls[frame.job_id])
            self._refuse(call, "full", _SUPERSEDED_RETRY_S)
        elif reason := self.degraded.get(frame.function):
            self._refuse(call, "degraded", _COLD_RETRY_S, reason)
        elif self.draining:
            self._refuse(call, "draining", 1.0)
        elif call.alone:
            call.wait_until = call.hold_until
            self._wait_alone(call, slots)
        elif slots.turns.contended or not slots.is_plain:
            self._take_in_turn(call, slots)
        elif executor := self.placing.free_executor(slots, frame.function):
            self._calls[frame.job_id] = call
            self.placing.start(call, slots, executor)
        elif not slots.waiting and (executor := self.placing.short_executor(slots, call)):
            self._calls[frame.job_id] = call
            self.placing.hand_ahead(call, slots, executor)
        else:
            self._wait(call, slots)

    def _take_in_turn(self, call: LocalCall, slots: Slots) -> None:
        """Others may be waiting for these slots: nothing is handed ahead, and what is kept for them stays."""
        executor = self.placing.free_executor(slots, call.frame.function)
        if executor is None or not self.placing.has_room_beside_jobs(slots):
            self._wait(call, slots)
        else:
            self._calls[call.job_id] = call
            slots.turns.is_jobs = True
            self.placing.start(call, slots, executor)

    def _wait_alone(self, call: LocalCall, slots: Slots) -> None:
        """An earlier start was lost with its process, and whatever ran beside it may be why; or it is."""
        self._calls[call.job_id] = call
        self.placing.alone.add(call, slots)
        self._keep_ticking()

    def _wait(self, call: LocalCall, slots: Slots) -> None:
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

    def _refuse(self, call: LocalCall, reason: str, retry_after_s: float, detail: str = "") -> None:
        self._metrics.refused(call.frame.function, reason)
        slots = self._slots[call.frame.function]
        call.caller.answer(Refused(call.job_id, reason, slots.load_in_room, retry_after_s, detail))

    def _note_start(self, call: LocalCall, executor: ExecutorProcess) -> None:
        call.start(executor, self._patience_s)
        self._metrics.started(call.frame.function, call.queue_ms / 1000)
        self._keep_ticking()

    # ------------------------------------------------------------------ taking jobs

    def claimable(self) -> list[str]:
        """The functions of which jobs may be claimed now."""
        if self.draining or self._is_cold():
            return []
        return [name for name in self._functions if name not in self.degraded]

    def expected_s(self, function: str) -> float:
        """The median of a function's execution times, in seconds; 0 while it isn't known."""
        return self._service_times[function].median

    def slots_of(self, function: str) -> Slots:
        """The slots that a function runs in."""
        return self._slots[function]

    def take_job(self, frame: Call, caller: Caller) -> None:
        """Start a claimed job, in the slot that was kept for it."""
        call = LocalCall(frame, caller, self._functions[frame.function].manifest)
        call.is_job = True
        call.expected_s = self._service_times[frame.function].mean
        slots = self._slots[frame.function]
        slots.turns.fill()
        if older := self._calls.get(frame.job_id):
            self._stop(older)  # an earlier start, which nobody waits for any more
        if self.draining or self._is_cold() or frame.function in self.degraded:
            self._give_back(call)
        elif frame.job_id in self._calls:
            self._parked[frame.job_id] = call  # it hasn't ended yet: never two at once
        elif call.alone:
            self._wait_alone(call, slots)
            self.placing.share_around(slots)
        else:
            self._calls[frame.job_id] = call
            self.placing.place_job(call, slots)
            self._keep_ticking()

    def _give_back(self, call: LocalCall) -> None:
        """A job that wasn't started here may start elsewhere."""
        call.caller.answer(Lost(call.job_id, call.frame.attempt, charged=False, suspect=False))

    # ------------------------------------------------------------------ ending calls

    def stop(self, job_id: str, caller: Caller) -> None:
        """This caller doesn't want the call any more: forget it if it waits, ask it to end if it runs."""
        for calls in (self._calls, self._parked):
            if (call := calls.get(job_id)) and call.caller is caller:
                self._stop(call)

    def _stop(self, call: LocalCall) -> None:
        if call.stopped:
            return
        call.stop(self._patience_s)
        slots = self._slots[call.frame.function]
        if call.executor is not None:
            call.executor.send(Stop(call.job_id, call.frame.attempt))
        elif self.placing.alone.drop(call):
            self._forget(call)
            if call.is_job:
                self._give_back(call)
            self.placing.start_waiting()
        elif self._parked.get(call.job_id) is call:
            del self._parked[call.job_id]
            self._give_back(call)
        elif call in slots.turns.arrived:
            slots.turns.arrived.remove(call)
            slots.turns.look()
            self._forget(call)
            self._give_back(call)
        else:
            slots.remove(call)
            self._forget(call)

    def kill(self, job_id: str, caller: Caller) -> None:
        """Stop a call for certain, and all that runs in its executor with it."""
        for calls in (self._calls, self._parked):
            if (call := calls.get(job_id)) and call.caller is caller:
                self._stop(call)
                if call.executor is not None:
                    call.executor.kill(call)

    def caller_lost(self, caller: Caller) -> None:
        """A gateway is gone: the work that only it waited for is stopped."""
        for call in [call for call in self._calls.values() if call.caller is caller]:
            self._stop(call)

    def executor_ready(self, executor: ExecutorProcess, ready: Ready) -> None:
        """An executor has loaded its models."""
        self.device = ready.device
        self._load_s = max(0.5, ready.load_s)
        self._patience_s = patience_s(ready.load_s)
        log.info("executor %d is ready on %s after %.2f s", executor.index, ready.device, ready.load_s)
        self.ready.set()
        executor.degraded = ready.degraded
        self._note_degraded()
        self.placing.start_waiting()

    def _note_degraded(self) -> None:
        degraded = degraded_everywhere(self.executors)
        if degraded != self.degraded:
            self.degraded = degraded
            self._give_back_unable()
            self._on_services()

    def executor_said(self, executor: ExecutorProcess, frame: FromExecutor) -> None:
        """An executor has finished a call, or tells how far it is."""
        if isinstance(frame, Ready):
            return
        call = executor.calls.get(frame.job_id)
        if isinstance(frame, Reported):
            if call is not None:
                call.caller.report(frame)
            return
        if call is None:
            log.warning("executor %d answered for an unknown call", executor.index)
            return
        slots = self._release(call, executor)
        self.placing.give_next(executor, slots)
        answer, outcome = answer_of(call, frame, slots.load_in_room)
        call.caller.answer(answer)
        if outcome == "succeeded":
            self._service_times[call.frame.function].observe(frame.exec_s)
        self._metrics.ended(call.frame.function, outcome, frame.exec_s)

    def executor_lost(self, executor: ExecutorProcess) -> None:
        """An executor's process has ended: its slots are free, its calls are settled."""
        executor.closed_for = None
        self._take_back(executor)
        for call in list(executor.calls.values()):
            slots = self._release(call, executor)
            answer, outcome, seconds = answer_of_lost(call, executor, slots.load_in_room)
            call.caller.answer(answer)
            self._metrics.ended(call.frame.function, outcome, seconds)
        self._metrics.restarted()
        if self._is_cold():
            self._give_back_unable()
        self.placing.start_waiting()  # what was taken back may start elsewhere

    def _give_back_unable(self) -> None:
        """Another runner may run what none here can, or not soon.

        Only what is to run alone waits for the next executor: that is one job at most, and to be claimed
        again takes as long, and counts.
        """
        cold = self._is_cold()
        for call in [call for call in self._calls.values() if call.executor is None]:
            reason = self.degraded.get(call.frame.function)
            if call.is_job and (reason or (cold and not call.alone)):
                self._stop(call)
            elif reason and not cold:
                self._stop(call)
                self._refuse(call, "degraded", _COLD_RETRY_S, reason)

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

    def _release(self, call: LocalCall, executor: ExecutorProcess) -> Slots:
        slots = self._slots[call.frame.function]
        del executor.calls[call.job_id]
        if slots.room.name == MAIN:
            executor.ahead.running = None
        executor.busy[slots.room.name] -= 1
        slots.ended(call)
        self._forget(call)
        return slots

    def _forget(self, call: LocalCall) -> None:
        del self._calls[call.job_id]
        if self._parked and (parked := self._parked.pop(call.job_id, None)):
            slots = self._slots[call.frame.function]
            if parked.alone:
                self._wait_alone(parked, slots)
                return
            self._calls[call.job_id] = parked
            slots.turns.arrive(parked)
            asyncio.get_running_loop().call_soon(self.placing.share_around, slots)
        if not self._calls:
            self._idle.set()

    # ------------------------------------------------------------------ time

    def _keep_ticking(self) -> None:
        self._idle.clear()
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick)

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
        late = [call for call in self.placing.alone if not call.is_job and call.wait_until <= now]
        for call in late:
            self.placing.alone.drop(call)
            self._forget(call)
            self._refuse(call, "full", self._brief_wait)
        if late:
            self.placing.start_waiting()
        for executor in self.executors:
            enforce(executor, now)
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
