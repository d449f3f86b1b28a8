"""Takes calls and jobs: starts them, lets them wait, or refuses them."""

from __future__ import annotations

import asyncio
from typing import Final

from gpu_runner.batching.joining import Joining
from gpu_runner.books import COLD_RETRY_S, Books
from gpu_runner.calls import Caller, LocalCall
from gpu_runner.endings import Endings
from gpu_runner.lots import Joined
from gpu_runner.placing import Placing
from gpu_runner.slots import Slots
from headrace.link.frames import Call, Refused

_SUPERSEDED_RETRY_S: Final = 0.2


class Intake:
    """Where calls come in.

    Args:
        books: what the parts of a supervisor share.
        placing: who starts them.
        joining: who joins those of batched functions.
        endings: who stops the earlier start of one that comes again.
    """

    def __init__(self, books: Books, placing: Placing, joining: Joining, endings: Endings) -> None:
        self._books = books
        self._placing = placing
        self._joining = joining
        self._endings = endings
        books.on_parked = self._unpark

    # ------------------------------------------------------------------ direct calls

    def take(self, frame: Call, caller: Caller) -> None:
        """Start a call, let it wait, or refuse it."""
        books = self._books
        function = books.functions.get(frame.function)
        if function is None or function.manifest.interface != frame.interface:
            caller.answer(Refused(frame.job_id, "unknown-interface"))
            return
        is_joined = function.is_batched
        call = (Joined if is_joined else LocalCall)(frame, caller, function.manifest)
        call.expected_s = books.service_times[frame.function].mean
        slots = books.slots[frame.function]
        if frame.job_id in books.calls:
            self._endings.supersede(books.calls[frame.job_id])
            books.refuse(call, "full", _SUPERSEDED_RETRY_S)
        elif closed := self._closed(frame.function):
            books.refuse(call, *closed)
        elif call.alone:
            call.wait_until = call.hold_until
            self._wait_alone(call, slots)
        elif is_joined:
            assert isinstance(call, Joined)
            self._joining.take(call, slots)
        elif slots.turns.contended or not slots.is_plain:
            self._take_in_turn(call, slots)
        elif executor := self._placing.free_executor(slots, frame.function):
            books.calls[frame.job_id] = call
            self._placing.start(call, slots, executor)
        elif not slots.waiting and (executor := self._placing.short_executor(slots, call)):
            books.calls[frame.job_id] = call
            self._placing.hand_ahead(call, slots, executor)
        else:
            self._wait(call, slots)

    def _closed(self, function: str) -> tuple[str, float, str] | None:
        """Why none of a function's calls is taken, when that should be over, and details; None: they are."""
        books = self._books
        if reason := books.degraded.get(function):
            return "degraded", COLD_RETRY_S, reason
        if books.draining:
            return "draining", 1.0, ""
        busy_s = books.busy_s(function)
        return ("full", busy_s, "") if busy_s else None

    def _take_in_turn(self, call: LocalCall, slots: Slots) -> None:
        """Others may be waiting for these slots: nothing is handed ahead, and what is kept for them stays."""
        executor = self._placing.free_executor(slots, call.frame.function)
        if executor is None or not self._placing.has_room_beside_jobs(slots):
            self._wait(call, slots)
        else:
            self._books.calls[call.job_id] = call
            slots.turns.is_jobs = True
            self._placing.start(call, slots, executor)

    def _wait_alone(self, call: LocalCall, slots: Slots) -> None:
        """An earlier start was lost with its process, and whatever ran beside it may be why; or it is."""
        if isinstance(call, Joined):
            self._joining.take_alone(call, slots)
        else:
            self._books.calls[call.job_id] = call
            self._placing.alone.add(call, slots)
        self._joining.hurry()
        self._books.models.waits(call.frame.function)
        self._books.keep_ticking()

    def _wait(self, call: LocalCall, slots: Slots) -> None:
        books = self._books
        longest_s = books.longest_wait(call)
        if refusal := books.refusal(call, slots, longest_s):
            books.refuse(call, *refusal)
            return
        call.wait_until = call.received_at + longest_s
        books.calls[call.job_id] = call
        slots.push(call)
        self._joining.hurry(slots)
        books.models.waits(call.frame.function)
        books.keep_ticking()

    # ------------------------------------------------------------------ jobs

    def take_job(self, frame: Call, caller: Caller) -> None:
        """Start a claimed job, in the slot that was kept for it; a batched function's joins others."""
        books = self._books
        function = books.functions[frame.function]
        call = (Joined if function.is_batched else LocalCall)(frame, caller, function.manifest)
        call.is_job = True
        call.expected_s = books.service_times[frame.function].mean
        slots = books.slots[frame.function]
        if older := books.calls.get(frame.job_id):
            self._endings.replace(older)  # an earlier start, which nobody waits for any more
        is_parked = frame.job_id in books.calls
        is_unable = books.draining or books.is_cold() or frame.function in books.degraded
        is_unable = is_unable or books.busy_s(frame.function) > 0
        if isinstance(call, Joined) and not (is_unable or is_parked or call.alone):
            self._joining.take_job(call, slots)
            return
        slots.turns.fill()
        if is_unable:
            books.give_back(call)
        elif is_parked:
            books.parked[frame.job_id] = call  # it hasn't ended yet: never two at once
        elif call.alone:
            self._wait_alone(call, slots)
            self._placing.share_around(slots)
        else:
            books.calls[frame.job_id] = call
            self._placing.place_job(call, slots)
            if call.executor is None:
                self._joining.hurry(slots)
            books.models.waits(frame.function)
            books.keep_ticking()

    def _unpark(self, call: LocalCall) -> None:
        """The earlier start of a job has ended."""
        slots = self._books.slots[call.frame.function]
        if call.alone:
            self._wait_alone(call, slots)
            return
        if isinstance(call, Joined):
            self._joining.take_job(call, slots, is_kept=False)
        else:
            self._books.calls[call.job_id] = call
            slots.turns.arrive(call)
            self._joining.hurry(slots)
        asyncio.get_running_loop().call_soon(self._placing.share_around, slots)
