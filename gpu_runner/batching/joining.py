"""Joins calls into lots while they wait for a slot.

A call joins the open lot of its function, which is the last one, so calls run in the order in which they
came. What finds a free slot runs at once, by itself, as a rule; lots fill while executors are busy.

A lot *lingers* when it follows another in its slot and waits there for more calls: where calls come so fast
that another is expected within the batch's `max_wait`, as long as they go on to come so fast, at most
`max_wait` in all, and for no more of them than the lot before had direct ones, as those are the callers who
may call again. The first of them to come back finds the slot free and lingers for the others; where other
slots are free as well, for its share of them. A lot doesn't linger while jobs or other functions want the
slot, and runs as soon as a call of another function has to wait for it, or jobs may, as no other is free.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable, Iterator

from gpu_runner.batching.pace import Pace
from gpu_runner.books import Books
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.lots import Joined, Lot
from gpu_runner.placing import Placing
from gpu_runner.slots import Slots


class Joining:
    """The lots that wait, or are about to start.

    Args:
        books: what the parts of a supervisor share.
        placing: whose slots lots take.
        on_start: called when a lot runs.
    """

    def __init__(
        self, books: Books, placing: Placing, on_start: Callable[[Lot, ExecutorProcess], None]
    ) -> None:
        self._books = books
        self._placing = placing
        self._on_start = on_start
        self._paces = {
            name: Pace(function.manifest, books.service_times[name])
            for name, function in books.functions.items()
            if function.is_batched
        }
        self._open: dict[str, Lot] = {}
        self._lots: dict[str, set[Lot]] = {name: set() for name in self._paces}
        self._just_ended: Lot | None = None  # while the slot that it has left is given to the next
        self._lingering: dict[Lot, tuple[ExecutorProcess, asyncio.TimerHandle]] = {}
        for name in self._paces:
            books.joined_loads[name] = functools.partial(self._load, name)

    # ------------------------------------------------------------------ what others may know

    def per_slot(self) -> dict[str, int]:
        """How many calls fill a slot, of each batched function."""
        return {name: pace.calls_per_lot for name, pace in self._paces.items()}

    def _load(self, function: str) -> int:
        """How busy a call of a batched function would find its slots, counted in calls.

        Whatever else has a slot or waits for one takes the place of a whole lot.
        """
        lots = self._lots[function]
        others = max(0, self._books.load_of_slots(function) - len(lots))
        return others * self._paces[function].calls_per_lot + sum(len(lot.calls) for lot in lots)

    def jobs_for(self, function: str, slots: int) -> int:
        """How many jobs should fill so many lots, the first of which may have calls already."""
        pace = self._paces[function]
        lot = self._open.get(function)
        first = pace.calls_for(pace.max_cost - lot.cost) if lot is not None else pace.calls_per_lot
        return first + (slots - 1) * pace.calls_per_lot

    # ------------------------------------------------------------------ taking calls

    def take(self, call: Joined, slots: Slots) -> None:
        """Let a direct call join, start by itself, or wait for others; or refuse it."""
        function = call.frame.function
        self._paces[function].arrived(call.received_at, call.cost)
        lot = self._open_for(call)
        if lot is not None:
            if self._may_wait(call, slots, lot):
                self._join(call, lot, slots)
            return
        executor = self._free_executor(slots, function)
        if executor is None and not self._may_wait(call, slots, None):
            return
        self._pass(function)
        lot = self._open_lot(call)
        if executor is None:
            lot.has_waited = True
            slots.push(lot)
            self.hurry(slots)
        else:
            slots.turns.is_jobs = True
            self._placing.start(lot, slots, executor)
        self._books.keep_ticking()

    def take_job(self, call: Joined, slots: Slots, *, is_kept: bool = True) -> None:
        """Let a claimed job join a lot, which then has the slot that was kept for jobs.

        It starts when slots are shared out next: when all that was claimed is here.

        Args:
            call: the job's.
            slots: that it runs in.
            is_kept: whether a slot was kept for it: not where it had to wait for its earlier start to end.
        """
        self._paces[call.frame.function].priced(call.cost)
        self._books.models.waits(call.frame.function)
        self._books.keep_ticking()
        lot = self._open_for(call)
        if lot is not None and (lot.is_job or lot.executor is not None):
            self._join(call, lot, slots)
            if lot.lingers_until:
                asyncio.get_running_loop().call_soon(self.hurry, slots)  # once all that was claimed is here
            return
        self._give_job_turn(call.frame.function, slots)
        if is_kept:
            slots.turns.fill()
        if lot is not None:
            self._join(call, lot, slots)
            return
        self._pass(call.frame.function)
        lot = self._open_lot(call)
        lot.is_job = True
        slots.turns.arrive(lot)
        self.hurry(slots)

    def _give_job_turn(self, function: str, slots: Slots) -> None:
        """Have lots of direct calls start before a job that joins the last of them, or follows it."""
        for lot in [one for one in slots.waiting if isinstance(one, Lot) and one.frame.function == function]:
            slots.remove(lot)
            lot.is_job = True
            slots.turns.arrive(lot)

    def take_alone(self, call: Joined, slots: Slots) -> None:
        """Let a call wait for an executor of its own; `wait_until` is the caller's to set."""
        lot = self._open_lot(call)
        lot.is_job = call.is_job
        self._placing.alone.add(lot, slots)

    def _open_for(self, call: Joined) -> Lot | None:
        """The open lot, if the call may join it."""
        function = call.frame.function
        lot = self._open.get(function)
        has_room = lot is not None and lot.has_room_for(call, self._paces[function].max_cost)
        return lot if has_room else None

    def _pass(self, function: str) -> None:
        """A call is about to open the next lot. No other joins the one before: none passes that call."""
        lot = self._open.get(function)
        if lot is None:
            return
        self._close(lot)
        if lot in self._lingering:
            self._go(lot, self._lingering[lot][0])

    def _open_lot(self, call: Joined) -> Lot:
        lot = Lot(call)
        lot.wait_until = math.inf  # each call waits as long as it may itself
        lot.expected_s = self._expected_s(lot)
        function = call.frame.function
        self._lots[function].add(lot)
        if lot.is_open:
            self._open[function] = lot
        self._books.calls[call.job_id] = call
        return lot

    def _close(self, lot: Lot) -> None:
        lot.is_open = False
        if self._open.get(lot.frame.function) is lot:
            del self._open[lot.frame.function]

    def _free_executor(self, slots: Slots, function: str) -> ExecutorProcess | None:
        """Where a direct call can start at once, as far as others leave it room."""
        executor = self._placing.free_executor(slots, function)
        is_shared = slots.turns.contended or not slots.is_plain
        return None if is_shared and not self._placing.has_room_beside_jobs(slots) else executor

    def _may_wait(self, call: Joined, slots: Slots, lot: Lot | None) -> bool:
        """Whether a direct call may wait so long as it will have to; else it is refused."""
        books = self._books
        longest = books.longest_wait(call)
        call.wait_until = call.received_at + longest
        if lot is not None and lot in self._lingering and self._lingering[lot][0].is_ready:
            return True  # it has its slot
        if refusal := books.refusal(call, slots, longest, lot):
            books.refuse(call, *refusal)
            return False
        books.models.waits(call.frame.function)
        return True

    def _join(self, call: Joined, lot: Lot, slots: Slots) -> None:
        self._books.calls[call.job_id] = call
        lot.add(call)
        self._resized(lot, slots, call.size)
        if lot.lingers_until:
            lot.may_come -= 1
            if lot.may_come <= 0 or self._is_full(lot):
                self._go(lot, self._lingering[lot][0])

    def _resized(self, lot: Lot, slots: Slots, size: int) -> None:
        """Keep the account of what waits, or is about to run."""
        more_s = self._expected_s(lot) - lot.expected_s
        if lot.executor is not None:
            slots.running_s += more_s
            lot.expected_s += more_s
        elif lot.is_job or lot.alone:
            lot.expected_s += more_s
        else:
            slots.changed(lot, size, more_s)

    def _expected_s(self, lot: Lot) -> float:
        return self._paces[lot.frame.function].expected_s(lot.cost)

    def _is_full(self, lot: Lot) -> bool:
        """Whether the next call of the usual kind would have to wait for another lot."""
        pace = self._paces[lot.frame.function]
        return lot.cost + pace.mean_cost > pace.max_cost

    # ------------------------------------------------------------------ before the start

    def begin(self, lot: Lot, slots: Slots, executor: ExecutorProcess) -> None:
        """A lot has its slot: run it, or let it wait there for more calls where that pays."""
        lot.executor = executor
        now = time.monotonic()
        lot.may_come = self._may_come(lot, slots)
        if lot.may_come > 0:
            lot.lingers_until = now + self._paces[lot.frame.function].batch.max_wait
            self._look(lot, executor)
        else:
            self._go(lot, executor)

    def _may_come(self, lot: Lot, slots: Slots) -> int:
        """For how many more calls a lot with a slot should wait; 0: for none."""
        pace = self._paces[lot.frame.function]
        is_wanted = slots.waiting or slots.turns.contended or not slots.is_plain
        if is_wanted or lot.is_job or not lot.is_open or not pace.comes_fast or self._is_full(lot):
            return 0
        if not lot.has_waited:
            return pace.others_to_come(1 + self._placing.free_beside_jobs(slots))
        before = self._just_ended
        return before.callers if before and before.frame.function == lot.frame.function else 0

    def _look(self, lot: Lot, executor: ExecutorProcess) -> None:
        """Run a lot that lingers, or look again when it may be due."""
        pace = self._paces[lot.frame.function]
        now = time.monotonic()
        since = lot.lingers_until - pace.batch.max_wait
        due_in = min(lot.lingers_until, pace.quiet_at(since)) - now
        if due_in <= 0:
            self._go(lot, executor)
        else:
            timer = asyncio.get_running_loop().call_later(due_in, self._look, lot, executor)
            self._lingering[lot] = executor, timer

    def hurry(self, slots: Slots | None = None) -> None:
        """Others wait for these slots, or for any: what lingers there runs now."""
        if not self._lingering:
            return
        for lot, (executor, _) in list(self._lingering.items()):
            is_theirs = slots is None or self._books.slots[lot.frame.function] is slots
            if is_theirs and lot in self._lingering:  # one before it may have let it run
                self._go(lot, executor)

    def _go(self, lot: Lot, executor: ExecutorProcess) -> None:
        """Run a lot; where its process has ended it stays as it is, until it is taken back."""
        if not executor.is_ready:
            return
        self._stop_lingering(lot)
        self._close(lot)
        for call in lot.late(time.monotonic()):
            if len(lot.calls) > 1:  # one stays, as the lot has its slot
                self.drop(call)
                self._books.give_up(call)
        executor.send(lot.run())
        self._on_start(lot, executor)

    def _stop_lingering(self, lot: Lot) -> None:
        lot.lingers_until = 0.0
        if lot in self._lingering:
            self._lingering.pop(lot)[1].cancel()

    def drop(self, call: Joined) -> None:
        """Leave out a call that needn't start any more; a lot without calls is gone."""
        lot = call.lot
        assert lot is not None
        assert not lot.started_at
        slots = self._books.slots[call.frame.function]
        if len(lot.calls) > 1:
            lot.drop(call)
            self._resized(lot, slots, -call.size)
        else:
            self._withdraw(lot, slots)
            lot.drop(call)
        self._books.forget(call)

    def _withdraw(self, lot: Lot, slots: Slots) -> None:
        self._close(lot)
        self._lots[lot.frame.function].discard(lot)
        if lot in self._lingering:
            executor, _ = self._lingering[lot]
            self._stop_lingering(lot)
            self._placing.release(lot, slots, executor)
            self._placing.give_next(executor, slots)
        elif lot.alone:
            self._placing.alone.drop(lot)
            self._placing.start_waiting()
        elif lot.is_job:
            slots.turns.arrived.remove(lot)
            slots.turns.look()
        else:
            slots.remove(lot)

    def take_back(self, lot: Lot, executor: ExecutorProcess) -> None:
        """Its executor was lost before it has started: it waits again, before all others."""
        slots = self._books.slots[lot.frame.function]
        self._stop_lingering(lot)
        self._placing.release(lot, slots, executor)
        lot.executor = None
        lot.has_waited = True
        for call in lot.parts:
            call.wait_until = call.hold_until
        slots.push_back(lot)
        self.hurry(slots)

    def overdue(self, now: float) -> Iterator[Joined]:
        """Leave out the direct calls that have waited as long as they may."""
        is_cold = self._books.is_cold()
        for lot in [lot for lots in self._lots.values() for lot in lots if lot.executor is None]:
            is_cold_for = is_cold or self._books.models.is_cold(lot.frame.function)
            for call in lot.parts:
                if is_cold_for:
                    call.wait_until = call.hold_until
                if lot.executor is not None:
                    break  # it has got the slot of one that was dropped
                if not call.is_job and call.wait_until <= now:
                    self.drop(call)
                    yield call

    # ------------------------------------------------------------------ after the start

    def running(self) -> list[Lot]:
        """The lots that run."""
        return [lot for lots in self._lots.values() for lot in lots if lot.started_at]

    def gone(self, lot: Lot, executor: ExecutorProcess) -> None:
        """A lot has left its slot."""
        self._lots[lot.frame.function].discard(lot)
        self._placing.release(lot, self._books.slots[lot.frame.function], executor)

    def ended(self, lot: Lot, executor: ExecutorProcess, too_many: int = 0) -> None:
        """A lot is through, memory having run out for so many calls of it; its slot is the next one's."""
        pace = self._paces[lot.frame.function]
        if lot.callers:
            pace.answered(time.monotonic(), lot.callers)
        pace.ended(lot.cost, lot.started_with, too_many)
        self.gone(lot, executor)
        self._just_ended = lot
        self._placing.give_next(executor, self._books.slots[lot.frame.function])
        self._just_ended = None
