"""What the parts of a supervisor share: which calls are here, and what decides whether more are taken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gpu_runner.able import able_for, busy_in
from gpu_runner.calls import LocalCall
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.enforcement import patience_s
from gpu_runner.metrics import RunnerMetrics
from gpu_runner.residency.residence import Residence
from gpu_runner.service_times import ServiceTime
from gpu_runner.slots import MAIN, Slots, slots_for
from headrace.link.frames import Error, Lost, Refused
from headrace.sdk import Function

COLD_RETRY_S: Final = 5.0


class Refusal(NamedTuple):
    """Why a call isn't taken, and after how many seconds it may be."""

    reason: str
    retry_after_s: float


class Books:
    """The runner's calls and the state that they meet.

    Args:
        functions: what this runner serves, by name.
        metrics: where executions are counted.
        brief_wait: the longest wait for a slot while executors are busy, in seconds.
        device_cap: the most calls that may use models at once; 0: as many as have slots.
        keep_ticking: called when a call is here whose waits and limits are to be kept.
    """

    def __init__(
        self,
        functions: Mapping[str, Function[Any, Any]],
        metrics: RunnerMetrics,
        brief_wait: float,
        device_cap: int,
        keep_ticking: Callable[[], None],
    ) -> None:
        self.executors: list[ExecutorProcess] = []
        self.functions = functions
        self.metrics = metrics
        self.brief_wait = brief_wait
        self.keep_ticking = keep_ticking
        self.slots: dict[str, Slots] = slots_for(functions.values(), device_cap)
        self.service_times = {name: ServiceTime() for name in functions}
        self.calls: dict[str, LocalCall] = {}
        """By job id: what waits or runs. The calls of a lot are here, the lot itself isn't."""
        self.parked: dict[str, LocalCall] = {}
        """Jobs that were given again while an earlier start runs here still, by job id."""
        self.degraded: dict[str, str] = {}
        self.busy_until: dict[str, float] = {}
        """By function: until when its calls would fail, as what it needs elsewhere is busy; monotonic."""
        self.draining = False
        self.load_s = COLD_RETRY_S
        self.patience_s = patience_s(0.0)
        self.idle = asyncio.Event()
        self.idle.set()
        self.joined_loads: dict[str, Callable[[], int]] = {}
        """Of functions whose calls share slots, by name: the load, counted in calls."""
        self.on_parked: Callable[[LocalCall], None] = lambda _: None
        """Called with a parked job when its earlier start has ended."""
        self.models: Residence
        self.models_of = {
            name: tuple(dict.fromkeys(model.name for model in function.models.values()))
            for name, function in functions.items()
        }

    def has(self, call: LocalCall) -> bool:
        """Whether a call waits or runs here still."""
        return self.calls.get(call.job_id) is call or self.parked.get(call.job_id) is call

    def is_cold(self) -> bool:
        """Whether no executor is ready."""
        for executor in self.executors:  # noqa: SIM110 - each call asks: a generator takes three times as long
            if executor.is_ready:
                return False
        return True

    def busy_s(self, function: str) -> float:
        """For how many seconds a function takes nothing, as what it needs elsewhere is busy."""
        until = self.busy_until.get(function)
        return 0.0 if until is None else max(0.0, until - time.monotonic())

    def longest_wait(self, call: LocalCall) -> float:
        """How long a direct call may wait for its start, in seconds: loading takes as long as it takes."""
        longest = call.hold_until - call.received_at
        is_cold = self.is_cold() or self.models.is_cold(call.frame.function)
        return longest if is_cold else min(longest, self.brief_wait)

    def refusal(
        self, call: LocalCall, slots: Slots, longest_s: float, joined: LocalCall | None = None
    ) -> Refusal | None:
        """Why a direct call can't wait so long as it would have to; None: it can.

        Args:
            call: that has just come.
            slots: that it would wait for one of.
            longest_s: its `longest_wait`.
            joined: what waits already and the call would be joined to; None: it waits behind all.
        """
        has_memory = slots.has_memory_for(call)
        if self.is_cold():
            return None if has_memory else Refusal("cold", self.load_s)
        function = call.frame.function
        load_s = self.models.wait_s(function)
        if slots.room.name == MAIN:
            load_s = max(load_s, self.models.main_wait_s())
        predicted = slots.predicted_wait(len(self.executors), joined) + load_s
        if predicted <= longest_s and has_memory:
            return None
        if self.models.is_cold(function):
            self.models.ask(function)
            return Refusal("cold", predicted or COLD_RETRY_S)
        return Refusal("full", predicted)

    def able_for(self, function: str) -> list[ExecutorProcess]:
        """The executors that count for a function: see `able`."""
        return able_for(function, self.models_of[function], self.executors, self.models.book)

    def slots_for(self, function: str) -> int:
        """How many of a function's calls, or lots of them, may run at once; 0: it can't run.

        While no executor is ready, one counts: it will be.
        """
        able = len(self.able_for(function))
        return 0 if not able and function in self.degraded else self.slots[function].most(max(1, able))

    def load(self, function: str) -> int:
        """Running and waiting calls of a function's slots."""
        load = self.joined_loads.get(function)
        return self.load_of_slots(function) if load is None else load()

    def load_of_slots(self, function: str) -> int:
        """The same, where joined calls count as one; what runs where the function can't isn't in its way."""
        slots = self.slots[function]
        load = slots.load_in_room
        if not load or self._runs_everywhere(function):
            return load
        able = self.able_for(function)
        return load - busy_in(slots, [one for one in self.executors if one.is_ready and one not in able])

    def _runs_everywhere(self, function: str) -> bool:
        for executor in self.executors:  # as above
            if function in executor.lacking or function in executor.degraded:
                return False
        return True

    def refuse(self, call: LocalCall, reason: str, retry_after_s: float, detail: str = "") -> None:
        """Tell the caller that the call isn't taken."""
        function = call.frame.function
        self.metrics.refused(function, reason)
        call.caller.answer(Refused(call.job_id, reason, self.load(function), retry_after_s, detail))

    def give_back(self, call: LocalCall) -> None:
        """A job that wasn't started here may start elsewhere; not before what it needs is busy no more."""
        busy_s = self.busy_s(call.frame.function)
        if busy_s > 0:
            call.caller.answer(Refused(call.job_id, "full", self.load(call.frame.function), busy_s))
            return
        call.caller.answer(Lost(call.job_id, call.frame.attempt, charged=False, suspect=False))

    def give_up(self, call: LocalCall) -> None:
        """A call is past its deadline before it was started here: no start can help it, here or elsewhere."""
        message = "The call was not started before its deadline."
        queue_ms = (time.monotonic() - call.received_at) * 1000
        load, attempt = self.load(call.frame.function), call.frame.attempt
        call.caller.answer(
            Error(call.job_id, "deadline-exceeded", message, attempt, queue_ms, exec_ms=0.0, load=load)
        )

    def forget(self, call: LocalCall) -> None:
        """The call is neither waiting nor running any more."""
        del self.calls[call.job_id]
        if self.parked and (parked := self.parked.pop(call.job_id, None)):
            self.on_parked(parked)
        if not self.calls:
            self.idle.set()
