"""Gives the slots of executors to calls: which call starts next, and where."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gpu_runner.alone import Alone
from gpu_runner.calls import LocalCall
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.invoking.resting import Resting, is_full
from gpu_runner.lots import Lot
from gpu_runner.slots import MAIN, Slots


class Models(Protocol):
    """Who keeps models for calls."""

    def began(self, function: str, executor: ExecutorProcess) -> None:
        """A call has been given to an executor."""
        ...

    def ended(self, function: str, executor: ExecutorProcess) -> None:
        """It has ended."""
        ...

    def is_blocked(self, function: str) -> bool:
        """Whether its calls wait for memory that others use."""
        ...


class Placing:
    """Starts calls in free slots.

    Args:
        executors: the runner's; the list may grow.
        slots: by function.
        on_start: called when a call runs, in a slot of its own.
        on_ahead: called when a call was handed to an executor that runs another.
        on_lot: called when joined calls have a slot, with whom it is left to start them.
        on_jobs: called when jobs may wait for slots of which none is kept for them.
        models: who is told which calls use them.
    """

    def __init__(
        self,
        executors: Sequence[ExecutorProcess],
        slots: Mapping[str, Slots],
        on_start: Callable[[LocalCall, ExecutorProcess], None],
        on_ahead: Callable[[], None],
        on_lot: Callable[[Lot, Slots, ExecutorProcess], None],
        on_jobs: Callable[[Slots], None],
        models: Models,
    ) -> None:
        self.wanted = asyncio.Event()
        """Set when slots are kept for jobs that haven't been asked for, or one more may run alone."""
        self.alone = Alone(executors, self.start, self._may_close, self._is_below_cap)
        self.resting = Resting(executors, slots, self._is_below_cap, self._freed)
        self._turn = itertools.count(1)
        self._executors = executors
        self._slots = slots
        self._groups = tuple(dict.fromkeys(slots.values()))
        self._capped = tuple(group for group in self._groups if group.cap)
        self._on_start = on_start
        self._on_ahead = on_ahead
        self._on_lot = on_lot
        self._on_jobs = on_jobs
        self._models = models

    # ------------------------------------------------------------------ direct calls

    def free_executor(self, slots: Slots, function: str) -> ExecutorProcess | None:
        """The executor with a free slot that runs least, of those that can run the function."""
        best: ExecutorProcess | None = None
        for executor in self._executors:
            if (
                executor.is_ready
                and executor.closed_for is None
                and executor.busy[slots.room.name] < slots.per_executor
                and not (executor.resting and is_full(executor, slots.room.name))
                and function not in executor.lacking
                and function not in executor.degraded
                and not (executor.is_moving and slots.room.name == MAIN)
            ):
                if not executor.calls:
                    return executor
                if best is None or len(executor.calls) < len(best.calls):
                    best = executor
        return best

    def short_executor(self, slots: Slots, call: LocalCall) -> ExecutorProcess | None:
        """An executor to which the call can be handed while it runs another, since both are short."""
        if slots.name != MAIN:
            return None
        function = call.frame.function
        best: ExecutorProcess | None = None
        for executor in self._executors:
            if (
                executor.is_ready
                and executor.closed_for is None
                and executor.ahead.has_room_for(call)
                and function not in executor.lacking
                and function not in executor.degraded
                and not executor.is_moving
                and (best is None or len(executor.ahead) < len(best.ahead))
            ):
                best = executor
        return best

    def hand_ahead(self, call: LocalCall, slots: Slots, executor: ExecutorProcess) -> None:
        """Give an executor what it is to run next."""
        call.executor = executor
        self._models.began(call.frame.function, executor)
        slots.handed_ahead(call)
        executor.ahead.add(call)
        executor.send(call.run())
        self._on_ahead()

    def start(self, call: LocalCall, slots: Slots, executor: ExecutorProcess) -> None:
        """Run a call in a free slot."""
        self._models.began(call.frame.function, executor)
        slots.started(call)
        if isinstance(call, Lot):
            self._take_slot(call, slots, executor)
            self._on_lot(call, slots, executor)
            return
        if slots.room.name == MAIN:
            executor.ahead.running = call
        executor.send(call.run())
        self._note_start(call, slots, executor)

    def _promote(self, executor: ExecutorProcess, slots: Slots) -> None:
        """The call after the one that has ended has started by now, or will before anything else."""
        call = executor.ahead.promote()
        slots.promoted()
        self._note_start(call, slots, executor)

    def _note_start(self, call: LocalCall, slots: Slots, executor: ExecutorProcess) -> None:
        self._take_slot(call, slots, executor)
        self._on_start(call, executor)

    def _take_slot(self, call: LocalCall, slots: Slots, executor: ExecutorProcess) -> None:
        executor.busy[slots.room.name] += 1
        executor.calls[call.job_id] = call

    def release(self, call: LocalCall, slots: Slots, executor: ExecutorProcess) -> None:
        """A call has left its slot."""
        del executor.calls[call.job_id]
        if self.resting.open and self.resting.left(call, executor):
            self._models.ended(call.frame.function, executor)
            return
        if slots.room.name == MAIN:
            executor.ahead.running = None
        executor.busy[slots.room.name] -= 1
        slots.ended(call)
        self._models.ended(call.frame.function, executor)

    def give_next(self, executor: ExecutorProcess, slots: Slots) -> None:
        """Use the slot that an executor has freed; what rests and may go on comes first."""
        if self.resting.woken:
            self.resting.look()
        if slots.name == MAIN and executor.ahead:
            self._promote(executor, slots)
        elif executor.closed_for is not None or self.alone:
            self._go_on_alone(executor, slots)
        elif slots.turns.contended or not slots.is_plain or (slots.waiting and executor.is_limited):
            self.share_around(slots)
        elif slots.waiting and executor.resting:
            self.share_around(slots)  # several may start where none could, as too many rested
        elif slots.waiting and executor.is_ready and executor.busy[slots.room.name] < slots.per_executor:
            # It may have been killed meanwhile, and what has ended may have been resting.
            self.start(slots.pop(), slots, executor)
        while slots.waiting and self._may_hand_ahead(executor, slots):
            self.hand_ahead(slots.pop(), slots, executor)

    def _freed(self, executor: ExecutorProcess, slots: Slots) -> None:
        """A call that runs there has begun to rest; an executor that was closed for it is open again."""
        closed_for = executor.closed_for
        if closed_for is not None and closed_for.job_id in executor.resting:
            executor.closed_for = None
            self.start_waiting()
        else:
            self.give_next(executor, slots)

    def _go_on_alone(self, executor: ExecutorProcess, slots: Slots) -> None:
        """Some call must run alone: an executor empties for it, or is open again after it."""
        if self.alone.ended(executor):
            for group in self._groups:
                group.turns.is_jobs = False  # who had to wait for it comes first
            self.start_waiting()
        elif self.alone.look():
            self.start_waiting()
        else:
            self.share_around(slots)

    def _may_close(self, executor: ExecutorProcess, slots: Slots) -> bool:
        """Whether an executor can be closed for a call of these slots: what is reserved for others stays."""
        others = sum(one.is_ready for one in self._executors if one is not executor)
        ending = [
            self._slots[call.frame.function]
            for call in executor.calls.values()
            if call.job_id not in executor.resting
        ]
        for group in self._groups:
            if group is not slots and group.reserve:
                beside = [one for one in group.room.groups if one is not group]
                running = sum(one.running - ending.count(one) for one in beside)
                if running > group.per_executor * others - group.reserve:
                    return False
        return True

    def _may_hand_ahead(self, executor: ExecutorProcess, slots: Slots) -> bool:
        call = slots.waiting[0]
        return (
            slots.name == MAIN
            and executor.ahead.has_room_for(call)
            and slots.is_plain
            and not slots.turns.contended
            and executor.is_ready
            and executor.closed_for is None
            and not isinstance(call, Lot)  # what joins meanwhile would be left behind
            and not executor.is_moving
            and call.frame.function not in executor.lacking
            and call.frame.function not in executor.degraded
        )

    def start_waiting(self) -> None:
        """Use all free slots, after executors have come or gone, or are open again."""
        if self.resting.woken:
            self.resting.look()
        self._share_all()
        if self.alone.look():
            self._share_all()  # it may use a reserve
        if self.alone.is_idle:
            self.wanted.set()

    def _share_all(self) -> None:
        for slots in self._in_turn(self._groups):
            self._share(slots)

    # ------------------------------------------------------------------ jobs and direct calls

    def share_around(self, slots: Slots) -> None:
        """Give each free slot of a group, and of those that it shares slots with, to whose turn it is."""
        if slots.is_plain:
            self._share(slots)
            return
        for group in self._in_turn(self._groups if slots.cap else slots.room.groups):
            self._share(group)

    def _in_turn(self, groups: Sequence[Slots]) -> list[Slots]:
        """Groups that don't use their reserve first, then those that were served longest ago."""
        return sorted(groups, key=lambda group: (not group.unmet, group.served))

    def _share(self, slots: Slots) -> None:
        """Give each free slot to whose turn it is: a job's, or a direct call's."""
        turns = slots.turns
        for left in range(self._available(slots), 0, -1):
            job = self._first_able(slots, turns.arrived)
            may_claim = turns.are_wanted and left > self._held_up(turns.arrived)
            is_jobs = turns.is_jobs and bool(job or may_claim)
            if not is_jobs and (found := self._first_able(slots, slots.waiting)):
                turns.is_jobs = True
                call, executor = found
                slots.remove(call)
                self.start(call, slots, executor)
            elif job:
                turns.is_jobs = False
                call, executor = job
                turns.arrived.remove(call)
                self.start(call, slots, executor)
                turns.look()
            elif may_claim:
                turns.reserve()
                self.wanted.set()
            else:
                return
            slots.served = next(self._turn)

    def _held_up(self, arrived: Iterable[LocalCall]) -> int:
        """Claimed jobs for which free slots stay free: their models are being loaded.

        Those that wait for memory hold up nobody, and no more of their function are claimed.
        """
        return sum(not self._models.is_blocked(call.frame.function) for call in arrived)

    def _first_able(
        self, slots: Slots, queue: Iterable[LocalCall]
    ) -> tuple[LocalCall, ExecutorProcess] | None:
        """The first call for which there is a free executor: as a rule the first of all.

        One that is past its deadline isn't started: it is about to be given up.
        """
        now = time.monotonic()
        for call in queue:
            if call.deadline_at <= now:
                continue
            if executor := self.free_executor(slots, call.frame.function):
                return call, executor
        return None

    def _available(self, slots: Slots) -> int:
        """Free slots that the group may take."""
        room = slots.room
        free = sum(
            slots.per_executor - one.busy[room.name]
            for one in self._executors
            if one.is_ready
            and one.closed_for is None
            and not (one.is_moving and room.name == MAIN)
            and not (one.resting and is_full(one, room.name))
        )
        if slots.is_plain:
            return free - slots.turns.reserved
        free -= room.kept_from(slots)
        if slots.cap:
            free = min(free, slots.cap - sum(one.turns.reserved for one in self._capped) - self._users)
        return free

    @property
    def _users(self) -> int:
        """Calls that run and use models."""
        return sum(group.running for group in self._capped)

    def _is_below_cap(self, slots: Slots) -> bool:
        return not slots.cap or self._users < slots.cap

    def has_room_beside_jobs(self, slots: Slots) -> bool:
        """Whether a direct call that comes now can start, no slot being kept for it."""
        return not slots.waiting and self.free_beside_jobs(slots) > 0

    def free_beside_jobs(self, slots: Slots) -> int:
        """How many slots of a group are free and not kept for jobs."""
        return max(0, self._available(slots))

    def hear(self, groups: Iterable[Slots]) -> None:
        """Jobs may be waiting for these."""
        for slots in groups:
            slots.turns.hear()
            self.share_around(slots)
            if not slots.turns.reserved:
                self._on_jobs(slots)

    def place_job(self, call: LocalCall, slots: Slots) -> None:
        """Start a claimed job in a free slot; it waits where what was kept for it has been lost."""
        executor = self.free_executor(slots, call.frame.function)
        if executor is not None and (slots.is_plain or self._available(slots) > 0):
            self.start(call, slots, executor)
        else:
            slots.turns.arrive(call)

    def answered(self, slots: Slots, asked: int, got: int) -> None:
        """The claim is answered: what it didn't fill is free again."""
        slots.turns.answered(asked, got)
        self.share_around(slots)

    def let_jobs_go(self) -> None:
        """Keep nothing for jobs until they are heard of again."""
        for slots in self._groups:
            self.let_go(slots)

    def let_go(self, slots: Slots) -> None:
        """Keep nothing of these slots for jobs."""
        slots.turns.let_go()
        self.share_around(slots)
