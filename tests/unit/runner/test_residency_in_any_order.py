"""The decisions about models, whatever happens in whatever order, on executors that are only numbers."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runner.residency.book import Book, Place, Spec, State
from gpu_runner.residency.plan import Load, Plan, Unload, Want, plan
from headrace.domain import FOREVER

BUDGET = 100
SIZES = {"a": 40, "b": 55, "c": 30, "d": 70, "e": 10}
KEEP_ALIVE = {"a": FOREVER, "b": FOREVER, "c": 5.0, "d": 0.0, "e": FOREVER}
LOAD_S = {"a": 0.1, "b": 2.0, "c": 0.5, "d": 1.0, "e": 0.0}
FUNCTIONS = {
    "one": ("a",),
    "two": ("b",),
    "three": ("c",),
    "large": ("d",),
    "both": ("a", "b"),
    "few": ("c", "e"),
}
TICK_S = 0.05
PATIENCE_S = 120.0
"""So long no call may wait, whatever the others do: calls take two seconds at most, and so do loads."""


class Call:
    def __init__(self, function: str, came: float, seconds: float) -> None:
        self.function = function
        self.models = FUNCTIONS[function]
        self.came = came
        self.seconds = seconds


class Machine:
    """Executors whose main thread runs one call, load or unload after the other."""

    def __init__(self, places: int, *, declared: bool = True) -> None:
        self.now = 1000.0
        specs = [Spec(name, KEEP_ALIVE[name], size if declared else 0) for name, size in SIZES.items()]
        self.book = Book(specs, places, BUDGET)
        for place in self.book.places:
            place.is_up = True
        self.inside: list[set[str]] = [set() for _ in range(places)]
        """What is in an executor indeed: what is there, and what is being loaded."""
        self.told: list[deque[Load | Unload]] = [deque() for _ in range(places)]
        self.busy_until: list[float] = [0.0] * places
        self.running: list[Call | None] = [None] * places
        self.waiting: deque[Call] = deque()
        self.longest_wait = 0.0
        self.served = 0
        self.loads = 0
        self.plan = Plan()

    # ------------------------------------------------------------------ what happens

    def call(self, function: str, seconds: float) -> None:
        self.waiting.append(Call(function, self.now, seconds))

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += TICK_S
            for place in self.book.places:
                self._work(place)
            self._start_waiting()
            self._decide()
            self.check()

    def _work(self, place: Place) -> None:
        index = place.index
        if self.now < self.busy_until[index]:
            return
        if (call := self.running[index]) is not None:
            self.running[index] = None
            self.served += 1
            self.book.ended(place, call.models, self.now)
        if not self.told[index]:
            return
        step = self.told[index][0]
        held = place.held[step.model]
        if isinstance(step, Unload):
            self.told[index].popleft()
            assert held.users == 0
            self.inside[index].discard(step.model)
            self.book.gone(place, step.model, SIZES[step.model])
        elif not held.begun:
            self.book.loading(place, step.model, self.now)
            self.inside[index].add(step.model)
            self.book.grown(place, step.model, SIZES[step.model])
            self.busy_until[index] = self.now + LOAD_S[step.model]
        else:
            self.told[index].popleft()
            self.loads += 1
            self.book.loaded(place, step.model, SIZES[step.model], LOAD_S[step.model], self.now)

    def _start_waiting(self) -> None:
        for call in list(self.waiting):
            for place in self.book.places:
                index = place.index
                free = self.running[index] is None and self.now >= self.busy_until[index]
                if free and place.is_up and not place.is_moving and place.has(call.models):
                    self.waiting.remove(call)
                    self.longest_wait = max(self.longest_wait, self.now - call.came)
                    self.running[index] = call
                    self.busy_until[index] = self.now + call.seconds
                    self.book.began(place, call.models)
                    break

    def _decide(self) -> None:
        up = frozenset(place.index for place in self.book.places if place.is_up)
        for place in self.book.places:
            place.is_running = self.running[place.index] is not None
        free = frozenset(
            index for index in up if self.running[index] is None and not self.book.places[index].is_moving
        )
        first: dict[tuple[str, ...], float] = {}
        for call in self.waiting:
            first.setdefault(call.models, call.came)
        wants = [Want(models, since, up, free) for models, since in first.items()]
        self.plan = plan(self.book, wants, self.now)
        for place, held in self.book.all_held():
            held.condemned = (place.index, held.model) in self.plan.condemned
        for step in self.plan.steps:
            place = self.book.places[step.place]
            if isinstance(step, Load):
                self.book.ask_load(place, step.model, self.now)
            else:
                assert place.held[step.model].users == 0, "what is in use is never unloaded"
                self.book.ask_unload(place, step.model, self.now)
            self.told[step.place].append(step)

    def lose(self, place: Place) -> None:
        if (call := self.running[place.index]) is not None:
            call.came = self.now
            self.waiting.append(call)
        self.book.lost(place)
        self.inside[place.index].clear()
        self.told[place.index].clear()
        self.running[place.index] = None
        self.busy_until[place.index] = 0.0
        place.is_up = True

    # ------------------------------------------------------------------ what always holds

    def check(self) -> None:
        taken = sum(SIZES[model] for inside in self.inside for model in inside)
        assert taken <= BUDGET, f"{taken} of {BUDGET} are taken"
        assert self.book.used <= BUDGET
        for call in self.waiting:
            assert self.now - call.came < PATIENCE_S, (
                f"{call.function} has waited for {self.now - call.came} s"
            )
        for place in self.book.places:
            running = self.running[place.index]
            if running is not None:
                assert all(place.held[model].state is State.RESIDENT for model in running.models)
                assert all(model in self.inside[place.index] for model in running.models)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from(sorted(FUNCTIONS)), st.sampled_from([0.05, 0.3, 2.0])),
        st.tuples(st.just("time"), st.sampled_from([0.05, 0.3, 2.5]), st.none()),
        st.tuples(st.just("lose"), st.integers(0, 2), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(places=st.integers(1, 3), steps=STEPS)
def test_memory_holds_nothing_in_use_goes_and_every_call_is_served(
    places: int, steps: list[tuple[Any, Any, Any]]
) -> None:
    machine = Machine(places)
    for kind, what, seconds in steps:
        match kind:
            case "call":
                machine.call(what, seconds)
            case "time":
                machine.pass_time(what)
            case _:
                machine.lose(machine.book.places[what % places])
    while machine.waiting or any(machine.running):
        machine.pass_time(TICK_S)  # which fails where one waits for too long
    machine.pass_time(6.0)
    idle = {held.model for _, held in machine.book.all_held()}
    assert not idle & {"c", "d"}  # unloaded, idle for longer than they are kept


@pytest.mark.parametrize("places", [1, 2])
def test_two_that_do_not_fit_together_and_are_always_wanted_do_not_thrash(places: int) -> None:
    """Both always have a call waiting: each load is paid for by twice as much time in use."""
    machine = Machine(places)
    seconds = 60.0
    end = machine.now + seconds
    while machine.now < end:
        for function in ("two", "large"):  # 55 and 70 of 100
            while sum(call.function == function for call in machine.waiting) < 2:
                machine.call(function, 0.1)
        machine.pass_time(TICK_S)
    loading = machine.loads * 1.5  # seconds: 2 and 1, one after the other
    assert machine.loads >= 4  # both had their turns
    assert loading <= seconds / 3 * 1.2
    assert machine.longest_wait < 20


def test_alternating_calls_one_at_a_time_are_served_at_once_however_short_the_residency() -> None:
    """Nobody waits for the model that is there: it goes after a lull, not after its least time."""
    machine = Machine(1)
    for _ in range(5):
        for function in ("two", "large"):
            machine.call(function, 0.1)
            began = machine.now
            while machine.waiting:
                machine.pass_time(TICK_S)
            assert machine.now - began <= 2.0 + 0.5  # the load, a tenth of the other's, and ticks
            machine.pass_time(0.3)


def test_the_longest_unused_goes_first() -> None:
    machine = Machine(1)
    for function in ("one", "few", "one"):  # 40 + 40; then 55 are wanted
        machine.call(function, 0.05)
        machine.pass_time(3.0)
    machine.call("two", 0.05)
    machine.pass_time(4.0)
    held = set(machine.book.places[0].held)
    assert "b" in held
    assert "a" in held  # 40 and 55: used since `c` and `e` were
    assert not held & {"c", "e"}


def test_without_declarations_sizes_are_learned_and_then_kept_to() -> None:
    machine = Machine(1, declared=False)
    for function in ("one", "three"):
        machine.call(function, 0.05)
        machine.pass_time(1.0)
    assert machine.book.measured == {"a": 40, "c": 30}
    for _ in range(3):
        for function in ("large", "one"):
            machine.book.measured.setdefault("d", SIZES["d"])  # by an earlier load
            machine.call(function, 0.05)
            machine.pass_time(6.0)
    assert not machine.waiting
