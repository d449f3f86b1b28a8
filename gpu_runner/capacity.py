"""What this runner can do at this moment, as gateways and Postgres are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpu_runner.able import busy_in
from gpu_runner.books import Books
from gpu_runner.calls import LocalCall
from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.invoking.resting import is_full
from gpu_runner.lots import Joined
from gpu_runner.residency.book import Place, State
from gpu_runner.residency.residence import Residence
from gpu_runner.residency.standing import ModelStanding as Standing
from gpu_runner.service_times import ServiceTime
from gpu_runner.slots import Slots
from headrace.capacity import (
    MOST_COSTS,
    Capacity,
    CostTime,
    DeviceStanding,
    ModelStanding,
    Report,
    Warmth,
)

_FRESH_S: Final = 0.2
"""So long the figures are told to others than who asked first: each gateway asks once a second."""

_STATES: Final[Mapping[str, str]] = {
    State.RESIDENT: "loaded",
    State.LOADING: "loading",
    State.UNLOADING: "unloading",
}
_NOWHERE: Final = -1


def cost_of(call: LocalCall) -> float:
    """The cost of a call's input; 0 where it has none, or nobody has priced it."""
    return call.cost if isinstance(call, Joined) else call.frame.cost


class Figures:
    """Reads off what a runner can do.

    Args:
        books: its calls and slots.
        residence: its models.
        per_slot: tells how many calls share a slot, of functions whose calls are joined.
    """

    def __init__(self, books: Books, residence: Residence, per_slot: Callable[[], Mapping[str, int]]) -> None:
        self._books = books
        self._residence = residence
        self._per_slot = per_slot
        self._told: dict[str, Capacity] = {}
        self._told_at = float("-inf")
        self._epoch = time.time() - time.monotonic()
        self._models = books.models_of
        self._users = {
            model: tuple(sorted(name for name, models in self._models.items() if model in models))
            for model in {model for models in self._models.values() for model in models}
        }

    # ------------------------------------------------------------------ functions

    def capacity(self) -> dict[str, Capacity]:
        """How each function stands."""
        now = time.monotonic()
        if now - self._told_at >= _FRESH_S:
            self._told = self._read()
            self._told_at = now
        return self._told

    def _read(self) -> dict[str, Capacity]:
        per_slot = self._per_slot()
        waiting: dict[str, int] = {}
        costs: dict[str, float] = {}
        for call in self._books.calls.values():
            if call.executor is None:
                name = call.frame.function
                waiting[name] = waiting.get(name, 0) + 1
                costs[name] = costs.get(name, 0.0) + cost_of(call)
        return {
            name: self._of(name, per_slot.get(name, 1), waiting.get(name, 0), costs.get(name, 0.0))
            for name in self._books.functions
        }

    def _of(self, name: str, per_slot: int, waiting: int, waiting_cost: float) -> Capacity:
        books, residence = self._books, self._residence
        slots, times, models = books.slots[name], books.service_times[name], self._models[name]
        able = books.able_for(name)
        return Capacity(
            slots=books.slots_for(name) * per_slot,
            free=0 if books.busy_s(name) else self._free(slots, able) * per_slot,
            busy=busy_in(slots, able),
            waiting=waiting,
            waiting_cost=waiting_cost,
            mean_s=times.mean,
            p95_s=times.p95,
            p50_s=times.median,
            known=times.known,
            cost_s=times.per_cost,
            by_cost=_by_cost(times),
            warmth="none" if books.is_cold() else self._warmth(name, models),
            load_s=residence.wait_s(name),
            memory=sum(held.bytes for _, held in residence.book.all_held() if held.model in models),
        )

    def _free(self, slots: Slots, able: Iterable[ExecutorProcess]) -> int:
        """Slots that a call could have at once in these executors, were its models loaded there."""
        room = slots.room
        free = sum(
            max(0, slots.per_executor - one.busy[room.name])
            for one in able
            if one.closed_for is None and not is_full(one, room.name)
        )
        free -= room.kept_from(slots)
        if slots.cap:
            groups = dict.fromkeys(self._books.slots.values())
            free = min(free, slots.cap - sum(one.running for one in groups if one.cap))
        return max(0, free)

    def _warmth(self, name: str, models: tuple[str, ...]) -> Warmth:
        residence = self._residence
        if not residence.is_cold(name):
            return "warm"
        places = [place for place in residence.book.places if place.is_up]
        return "loading" if any(_is_coming(place, models) for place in places) else "cold"

    # ------------------------------------------------------------------ all of it

    def report(self, device: str) -> Report:
        """All that is told to Postgres.

        Args:
            device: what executors compute on.
        """
        memory = self._residence.memory(device)
        return Report(
            functions=self.capacity(),
            models=self._models_at(device),
            devices=(DeviceStanding(device=device, budget=memory.budget, used=memory.used),),
        )

    def _models_at(self, device: str) -> tuple[ModelStanding, ...]:
        """How each model stands in each executor that has it; one that is nowhere is told of once."""
        told: dict[tuple[str, int], ModelStanding] = {}
        for one in self._residence.standing():
            executor = one.executor if one.state in _STATES else _NOWHERE
            told[one.model, executor] = self._told_of(one, executor, device)
        somewhere = {model for model, executor in told if executor != _NOWHERE}
        return tuple(
            standing
            for (model, executor), standing in sorted(told.items())
            if executor != _NOWHERE or model not in somewhere
        )

    def _told_of(self, one: Standing, executor: int, device: str) -> ModelStanding:
        is_idle = one.state == State.RESIDENT and not one.users
        used_at = self._epoch + time.monotonic() - one.idle_s
        return ModelStanding(
            model=one.model,
            executor=executor,
            device=device,
            state=_STATES.get(one.state) or self._state_of_absent(one),
            size=one.bytes,
            declared=one.declared,
            in_use=one.users,
            used_at=round(used_at, 1) if is_idle else 0.0,
            load_s=one.load_s,
            functions=self._users[one.model],
            reason=one.reason,
        )

    def _state_of_absent(self, one: Standing) -> str:
        if self._residence.is_asked(one.model):
            return "waiting"
        return "failed" if one.reason else "unloaded"


def _is_coming(place: Place, models: tuple[str, ...]) -> bool:
    """Whether an executor loads one of these."""
    return any(model in place.held and place.held[model].state is State.LOADING for model in models)


def _by_cost(times: ServiceTime) -> tuple[CostTime, ...]:
    """The buckets with the most executions, from the lowest on."""
    known = sorted(times.by_cost.items(), key=lambda one: one[1].known, reverse=True)[:MOST_COSTS]
    return tuple(CostTime(cost, spread.mean, spread.p95, spread.known) for cost, spread in sorted(known))
