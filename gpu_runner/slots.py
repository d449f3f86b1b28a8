"""Room for running calls, and the brief wait for it.

Synchronous functions of concurrency 1 share the executor's main thread, so they share slots; every other
function has slots of its own. A function for which some of the shared slots are reserved waits for itself, in
a group of its own, and so do functions that use models where their number on the device is capped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Protocol

from gpu_runner.calls import LocalCall
from gpu_runner.turns import Turns
from headrace.sdk import Function

MAIN = "(main)"  # no function can be named so
MODELS = "(models)"

_MAX_WAITING_BYTES = 64 * 2**20


class ColdModels(Protocol):
    """Who knows which calls wait for models."""

    def is_cold(self, function: str) -> bool:
        """Whether a function's calls wait for models, as no executor has them."""
        ...


class Room:
    """Where calls run in each executor: its main thread, or what a function has of its own.

    Args:
        name: of the room.
        per_executor: how many calls one executor may run in it at once.
    """

    def __init__(self, name: str, per_executor: int) -> None:
        self.name = name
        self.per_executor = per_executor
        self.groups: list[Slots] = []

    def kept_from(self, slots: Slots) -> int:
        """Free slots that one of the groups may not take: those kept for jobs, and the others' reserves."""
        kept = 0
        for group in self.groups:
            kept += group.turns.reserved
            if group is not slots:
                kept += group.unmet
        return kept


class Slots:
    """The slots that some functions share, and the calls that wait for one of them.

    Args:
        name: of the group.
        per_executor: how many calls one executor may run at once.
        room: where they run; by default a room for this group alone.
        reserve: how many slots of the room no other group may take.
        cap: the most calls that may use models at once, if its calls count against that; 0: they don't.
    """

    def __init__(
        self,
        name: str,
        per_executor: int,
        room: Room | None = None,
        *,
        reserve: int = 0,
        cap: int = 0,
    ) -> None:
        self.name = name
        self.per_executor = per_executor
        self.room = room or Room(name, per_executor)
        self.room.groups.append(self)
        self.reserve = reserve
        self.cap = cap
        self.served = 0
        """When it last got a slot that others wanted too, as a number that grows."""
        self.running = 0
        self.ahead = 0
        self.waiting: deque[LocalCall] = deque()
        self.turns = Turns()
        self._waiting_bytes = 0
        self._waiting_s = 0.0
        self.running_s = 0.0
        self.is_plain = False
        """Whether its slots are nobody else's concern."""
        for group in self.room.groups:
            group.is_plain = not group.cap and len(self.room.groups) == 1

    @property
    def unmet(self) -> int:
        """How much of its reserve it doesn't use at the moment."""
        return max(0, self.reserve - self.running - self.turns.reserved)

    @property
    def load(self) -> int:
        """Calls that run or wait."""
        return self.running + self.ahead + len(self.waiting)

    @property
    def load_in_room(self) -> int:
        """The same, with what others run in the same slots: how busy a call that came now would find them."""
        if self.is_plain:
            return self.load
        return self.load + sum(one.running + one.ahead for one in self.room.groups if one is not self)

    def most(self, executors: int) -> int:
        """How many of its calls may run at once, at least one."""
        most = executors * self.per_executor
        if not self.is_plain:
            most -= sum(one.reserve for one in self.room.groups if one is not self)
            if self.cap:
                most = min(most, self.cap)
        return max(1, most)

    def predicted_wait(self, executors: int, joined: LocalCall | None = None) -> float:
        """Seconds until a call that came now would start, by the means of what is ahead of it.

        While jobs may be waiting, one of them starts between any two calls. Whoever can have a slot that is
        kept for jobs waits for the answer to a claim only, and as a rule that brings no job.

        Args:
            executors: how many there are.
            joined: what waits already and the call would be joined to; None: it waits behind all.
        """
        ahead = self.waiting if joined is None else self._ahead_of(joined)
        if self.is_plain:
            reserved, running_s = self.turns.reserved, self.running_s
        else:
            reserved = sum(one.turns.reserved for one in self.room.groups)
            running_s = sum(one.running_s for one in self.room.groups)
        if len(ahead) < reserved:
            return 0.0
        waiting_s = self._waiting_s if joined is None else sum(one.expected_s for one in ahead)
        if self.turns.contended:
            waiting_s *= 2
        return (waiting_s + running_s) / self.most(executors)

    def _ahead_of(self, call: LocalCall) -> Sequence[LocalCall]:
        if call.is_job:
            return ()  # it has the next turn
        return list(takewhile(lambda one: one is not call, self.waiting))

    def has_memory_for(self, call: LocalCall) -> bool:
        """Whether the waiting inputs, this one included, stay within what may wait in memory."""
        return self._waiting_bytes + call.size <= _MAX_WAITING_BYTES

    def push(self, call: LocalCall) -> None:
        """Let a call wait."""
        self.waiting.append(call)
        self._waiting_bytes += call.size
        self._waiting_s += call.expected_s

    def changed(self, call: LocalCall, size: int, expected_s: float) -> None:
        """What waits here has become so many bytes and seconds more, or less."""
        call.expected_s += expected_s
        self._waiting_bytes += size
        self._waiting_s += expected_s

    def pop(self) -> LocalCall:
        """The call that has waited longest."""
        call = self.waiting.popleft()
        self._left(call)
        return call

    def remove(self, call: LocalCall) -> None:
        """Take out a call that needn't wait any more."""
        self.waiting.remove(call)
        self._left(call)

    def wait_for_process(self) -> None:
        """Nothing is ready: the brief wait is no measure, so calls wait for it as long as they can."""
        for call in self.waiting:
            call.wait_until = call.hold_until

    def wait_for_models(self, models: ColdModels) -> None:
        """The same for calls whose models no executor has."""
        for call in self.waiting:
            if models.is_cold(call.frame.function):
                call.wait_until = call.hold_until

    def kept_too_long(self, now: float) -> Iterator[Slots]:
        """The groups that have kept slots for jobs all the time that a call could wait here."""
        for group in self.room.groups:
            since = group.turns.kept_since
            if group.turns.reserved and any(
                one.wait_until <= now and one.received_at >= since
                for call in self.waiting
                for one in call.parts
            ):
                yield group

    def overdue(self, now: float) -> Iterator[LocalCall]:
        """Take out the calls that have waited as long as they may."""
        for call in [call for call in self.waiting if call.wait_until <= now]:
            self.remove(call)
            yield call

    def handed_ahead(self, call: LocalCall) -> None:
        """A call waits in an executor for the end of another."""
        self.ahead += 1
        self.running_s += call.expected_s

    def promoted(self) -> None:
        """A call that was handed ahead has started."""
        self.ahead -= 1
        self.running += 1

    def returned(self, call: LocalCall) -> None:
        """A call that was handed ahead never started; it is no longer counted."""
        self.ahead -= 1
        self._less(call)

    def push_back(self, call: LocalCall) -> None:
        """Let a call wait before all others."""
        self.waiting.appendleft(call)
        self._waiting_bytes += call.size
        self._waiting_s += call.expected_s

    def started(self, call: LocalCall) -> None:
        """A call has taken a slot."""
        self.running += 1
        self.running_s += call.expected_s

    def ended(self, call: LocalCall) -> None:
        """A call has given its slot back."""
        self.running -= 1
        self._less(call)

    def _less(self, call: LocalCall) -> None:
        busy = self.running + self.ahead
        self.running_s = self.running_s - call.expected_s if busy else 0.0

    def _left(self, call: LocalCall) -> None:
        self._waiting_bytes -= call.size
        self._waiting_s = 0.0 if not self.waiting else self._waiting_s - call.expected_s


def group_of(function: Function[Any, Any]) -> tuple[str, int]:
    """The name and size, per executor, of the slots that a function runs in."""
    concurrency = function.manifest.concurrency
    if function.is_async or concurrency > 1:
        return function.name, concurrency
    return MAIN, 1


def slots_for(functions: Iterable[Function[Any, Any]], device_cap: int = 0) -> dict[str, Slots]:
    """Slots by function name; functions that share the main thread share one `Slots` as a rule.

    Args:
        functions: all that the runner serves.
        device_cap: the most calls that may use models at once; 0: as many as have slots.
    """
    rooms: dict[str, Room] = {}
    groups: dict[tuple[str, str], Slots] = {}
    by_function: dict[str, Slots] = {}
    for function in functions:
        room_name, size = group_of(function)
        room = rooms.setdefault(room_name, Room(room_name, size))
        cap = device_cap if function.models else 0
        name = _group_name(function, room_name, cap)
        if (room_name, name) not in groups:
            reserve = function.manifest.reserve
            groups[room_name, name] = Slots(name, size, room, reserve=reserve, cap=cap)
        by_function[function.name] = groups[room_name, name]
    return by_function


def _group_name(function: Function[Any, Any], room_name: str, cap: int) -> str:
    if function.manifest.reserve:
        return function.name
    return MODELS if cap and room_name == MAIN else room_name
