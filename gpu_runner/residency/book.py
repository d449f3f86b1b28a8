"""What each executor holds, how much memory that takes, and who uses it. No decisions, no effects.

Sizes are bytes, instants are `time.monotonic()`, executors are numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headrace.domain import FOREVER

_LEAST_RESIDENCY_S = 1.0
_LOADS = 2.0  # so many times its load time, at least, is a model used before others may have its room
_LULL = 0.1  # of its load time: who is idle for so long isn't in the middle of its calls
_LEAST_LULL_S = 0.05
_SLACK = 0.01  # of the budget: a page more or less isn't worth that a model is loaded again


class State(StrEnum):
    """Where a model stands in one executor; what isn't there at all has no state."""

    LOADING = "loading"
    RESIDENT = "resident"
    UNLOADING = "unloading"


class Spec(NamedTuple):
    """What a model's author has declared; `memory` is 0 where nothing is."""

    name: str
    keep_alive: float = FOREVER
    memory: int = 0


@dataclass(slots=True)
class Held:
    """A model in an executor."""

    model: str
    state: State
    bytes: int
    since: float
    """When it began to be in this state."""
    last_use: float
    users: int = 0
    begun: bool = False
    """Whether the executor has said that it has begun to load it."""
    condemned: bool = False
    """Whether no call may start with it, as it is to make room."""
    limit: int = 0
    """While it loads, the most that it may take; 0: any."""
    has_all: bool = False
    """Whether it is loaded with all the room there is, as less wasn't enough."""


@dataclass(slots=True)
class Place:
    """One executor, as far as memory goes."""

    index: int
    is_up: bool = False
    """Whether it takes calls."""
    is_running: bool = False
    """Whether its main thread runs calls, which a load would wait for."""
    is_dying: bool = False
    """Whether it was killed for what it loads, and isn't gone yet."""
    base: int = 0
    """What it takes beside its models."""
    least_base: int = 0
    held: dict[str, Held] = field(default_factory=dict[str, Held])
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    """What models take in this life of it: at a second load, less than at the first, with its imports."""
    peaks: dict[str, int] = field(default_factory=dict[str, int])
    """What loading them took in this life of it, at most."""

    @property
    def is_moving(self) -> bool:
        """Whether its main thread loads or unloads, or is told to."""
        return bool(self.held) and any(one.state is not State.RESIDENT for one in self.held.values())

    @property
    def used(self) -> int:
        """All that it takes."""
        held = tuple(self.held.values())  # a copy: Prometheus' thread asks, too
        return self.base + sum(one.bytes for one in held)

    def note_base(self, base: int, *, is_new: bool = False) -> None:
        """So much does it take beside its models."""
        self.base = max(0, base)
        self.least_base = self.base if is_new or not self.least_base else min(self.least_base, self.base)

    def has(self, models: Iterable[str]) -> bool:
        """Whether calls that use these models can start here."""
        return all(
            (one := self.held.get(model)) is not None and one.state is State.RESIDENT and not one.condemned
            for model in models
        )

    def lacks(self, models: Iterable[str]) -> list[str]:
        """Those that would have to be loaded."""
        return [model for model in models if model not in self.held]


class Book:
    """All executors of a runner and their models.

    Args:
        specs: of the models.
        places: how many executors there are.
        budget: what all of them may take together; 0: it isn't known yet.
    """

    def __init__(self, specs: Iterable[Spec], places: int, budget: int = 0) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.places = [Place(index) for index in range(places)]
        self.budget = budget
        self.load_s: dict[str, float] = {}
        self.loads: Counter[tuple[int, str]] = Counter()
        self.unloads: Counter[str] = Counter()
        self.loading_s = dict.fromkeys(self.specs, 0.0)
        """Seconds that all loads of a model took together."""
        self.measured: dict[str, int] = {}
        self.peaks: dict[str, int] = {}
        """What loading models took at most, which may be more than they keep."""
        self.at_least: dict[str, int] = {}
        """Of models whose loading was broken off: they need more than this."""
        self.unsure: set[str] = set()
        """Models that were measured while calls ran beside: what those took was counted, too."""

    # ------------------------------------------------------------------ sizes

    def size(self, model: str, place: Place | None = None) -> int:
        """What a model takes: as measured, before that as declared, before that 0."""
        if least := self.at_least.get(model):
            # Broken off, it may need all there is: it is tried again with nothing beside it.
            return max(least, self.room)
        if place is not None and model in place.sizes:
            return place.sizes[model]
        return self.measured.get(model) or self.specs[model].memory

    def need(self, model: str, place: Place) -> int:
        """What loading a model takes for a while, its size at least."""
        known = place.peaks if model in place.sizes else self.peaks
        return max(self.size(model, place), known.get(model, 0))

    def needed(self, place: Place, models: Iterable[str]) -> int:
        """What loading those of these models that an executor lacks takes, all of them in the end."""
        models = tuple(models)
        missing = place.lacks(models)
        needed = sum(self.need(model, place) for model in missing)
        if not any(model in self.at_least for model in missing):
            return needed
        # With nothing beside these models, one of which needs nobody knows how much.
        there = sum(place.held[model].bytes for model in models if model in place.held)
        return min(needed, max(sum(map(self.least_size, missing)), self.room - there))

    def least_size(self, model: str) -> int:
        """What a model takes for sure."""
        if model not in self.at_least and model in self.unsure:
            return self.specs[model].memory
        return self.at_least.get(model) or self.measured.get(model) or self.specs[model].memory

    @property
    def room(self) -> int:
        """What the budget leaves for models."""
        return self.budget - sum(place.base or place.least_base for place in self.places)

    @property
    def used(self) -> int:
        """What all executors take, with what is being loaded and what isn't yet gone."""
        return sum(place.used for place in self.places)

    @property
    def leaving(self) -> int:
        """What will be free soon."""
        return sum(
            held.bytes for place, held in self.all_held() if held.state is State.UNLOADING or place.is_dying
        )

    @property
    def excess(self) -> int:
        """What executors take over the budget, for which models can be blamed; a hundredth is let pass."""
        over = self.used - self.leaving - self.budget
        return over if self.budget and self.room > 0 and over > self.budget * _SLACK else 0

    def all_held(self) -> Iterator[tuple[Place, Held]]:
        """Every model of every executor."""
        return ((place, held) for place in self.places for held in place.held.values())

    def needed_alone(self, models: Iterable[str]) -> int:
        """What an executor with these models and nothing else would take."""
        least = min((place.least_base for place in self.places), default=0)
        return least + sum(map(self.least_size, models))

    def can_ever_fit(self, models: Iterable[str]) -> bool:
        """Whether the budget has room for these models together."""
        return not self.budget or self.needed_alone(models) <= self.budget

    def forget(self, model: str) -> None:
        """Forget how much a model that couldn't be loaded takes."""
        in_places = [known for place in self.places for known in (place.sizes, place.peaks)]
        for known in (self.measured, self.peaks, self.at_least, *in_places):
            known.pop(model, None)
        self.unsure.discard(model)

    # ------------------------------------------------------------------ what happens

    def ask_load(self, place: Place, model: str, now: float) -> int:
        """A model is to be loaded; returns the most that it may take, 0: any."""
        limit = max(1, self.budget - self.used) if self.budget else 0
        has_all, need = model in self.at_least, self.need(model, place)
        taken = min(need, limit) if has_all and limit else need
        place.held[model] = Held(model, State.LOADING, taken, now, now, limit=limit, has_all=has_all)
        return limit

    def withdraw(self, index: int, model: str) -> None:
        """A load that the executor wasn't told of isn't to be, after all."""
        held = self.places[index].held.get(model)
        if held is not None and held.state is State.LOADING and not held.begun:
            del self.places[index].held[model]

    def loading(self, place: Place, model: str, now: float) -> None:
        """The executor has begun."""
        held = place.held.setdefault(model, Held(model, State.LOADING, self.need(model, place), now, now))
        held.state, held.since, held.begun = State.LOADING, now, True

    def grown(self, place: Place, model: str, growth: int, *, is_sure: bool = True) -> None:
        """While it loads, the executor has grown by so much; for sure, where no calls run beside."""
        held = place.held[model]
        held.bytes = max(held.bytes, growth)
        if not is_sure:
            return
        if model not in place.sizes:
            self.peaks[model] = max(self.peaks.get(model, 0), growth)
        place.peaks[model] = max(place.peaks.get(model, 0), growth)

    def loaded(
        self, place: Place, model: str, taken: int, seconds: float, now: float, *, is_sure: bool = True
    ) -> None:
        """A model is there; what it takes is sure where no calls have run beside."""
        place.held[model] = Held(model, State.RESIDENT, taken, now, now, begun=True)
        is_new = model not in place.sizes and (is_sure or model in self.unsure)
        if is_new or model not in self.measured or (is_sure and model in self.unsure):
            self.measured[model] = taken
            (self.unsure.discard if is_sure else self.unsure.add)(model)
        place.sizes[model] = taken
        self.at_least.pop(model, None)
        self.load_s[model] = seconds
        self.loading_s[model] += seconds
        self.loads[place.index, model] += 1

    def ask_unload(self, place: Place, model: str, now: float) -> None:
        """A model is to go."""
        held = place.held[model]
        held.state, held.since = State.UNLOADING, now

    def gone(self, place: Place, model: str, freed: int | None = None) -> None:
        """A model isn't there any more, which has freed so much; or it couldn't be loaded."""
        held = place.held.pop(model, None)
        if freed is not None and held is not None:
            self.unloads[model] += 1
            # What stays is the executor's: its imports, and what its allocator keeps for the next load.
            place.sizes[model] = max(0, min(freed, held.bytes))
            place.base += held.bytes - place.sizes[model]

    def weighed(self, place: Place, resident: int, *, is_new: bool = False) -> None:
        """So much does an executor take in all, its models included."""
        models = sum(held.bytes for held in place.held.values() if held.state is not State.LOADING)
        place.note_base(resident - models, is_new=is_new)

    def lost(self, place: Place) -> list[Held]:
        """An executor is gone; returns what it held."""
        held = list(place.held.values())
        place.held, place.sizes, place.peaks = {}, {}, {}
        place.base, place.is_up = 0, False
        place.is_running = place.is_dying = False
        return held

    # ------------------------------------------------------------------ use

    def began(self, place: Place, models: Iterable[str]) -> None:
        """A call that uses these models has started, or will."""
        for model in models:
            if held := place.held.get(model):
                held.users += 1

    def ended(self, place: Place, models: Iterable[str], now: float) -> None:
        """It has ended."""
        for model in models:
            if held := place.held.get(model):
                held.users = max(0, held.users - 1)
                held.last_use = now

    def is_ripe(self, held: Held, now: float) -> bool:
        """Whether others may have its room: it has been of use, or is of none."""
        load_s = self.load_s.get(held.model, 0.0)
        if now - held.since >= max(_LEAST_RESIDENCY_S, _LOADS * load_s):
            return True
        return held.users == 0 and now - held.last_use >= max(_LEAST_LULL_S, _LULL * load_s)

    def expires_at(self, held: Held) -> float:
        """When it has been idle for as long as it may be; infinity: never, or not now."""
        keep_alive = self.specs[held.model].keep_alive
        if keep_alive == FOREVER or held.users or held.state is not State.RESIDENT:
            return float("inf")
        return held.last_use + keep_alive

    def next_expiry(self, place: Place, kept: Container[tuple[int, str]] = ()) -> float:
        """When the first of an executor's models has, those that are kept aside; infinity: none will."""
        if not place.is_up:
            return float("inf")
        held = (one for one in place.held.values() if (place.index, one.model) not in kept)
        return min(map(self.expires_at, held), default=float("inf"))
