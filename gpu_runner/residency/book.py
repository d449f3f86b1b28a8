"""What each executor holds, how much memory that takes, and who uses it. No decisions, no effects.

Sizes are bytes, instants are `time.monotonic()`, executors are numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headrace.domain import FOREVER

_LEAST_RESIDENCY_S = 1.0
_LOADS = 2.0  # so many times its load time, at least, is a model used before others may have its room
_LULL = 0.1  # of its load time: who is idle for so long isn't in the middle of its calls
_LEAST_LULL_S = 0.05


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


@dataclass(slots=True)
class Place:
    """One executor, as far as memory goes."""

    index: int
    is_up: bool = False
    """Whether it takes calls."""
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
        return any(one.state is not State.RESIDENT for one in self.held.values())

    @property
    def used(self) -> int:
        """All that it takes."""
        return self.base + sum(one.bytes for one in self.held.values())

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
        self.measured: dict[str, int] = {}
        self.peaks: dict[str, int] = {}
        """What loading models took at most, which may be more than they keep."""
        self.at_least: dict[str, int] = {}
        """Of models whose loading was broken off: they need more than this."""

    # ------------------------------------------------------------------ sizes

    def size(self, model: str, place: Place | None = None) -> int:
        """What a model takes: as measured, before that as declared, before that 0."""
        if least := self.at_least.get(model):
            # Broken off, it may need all there is: it is tried again with nothing beside it.
            return max(least, self.budget - sum(one.base for one in self.places))
        if place is not None and model in place.sizes:
            return place.sizes[model]
        return self.measured.get(model) or self.specs[model].memory

    def need(self, model: str, place: Place) -> int:
        """What loading a model takes for a while, its size at least."""
        known = place.peaks if model in place.sizes else self.peaks
        return max(self.size(model, place), known.get(model, 0))

    @property
    def used(self) -> int:
        """What all executors take, with what is being loaded and what isn't yet gone."""
        return sum(place.used for place in self.places)

    @property
    def leaving(self) -> int:
        """What will be free soon."""
        return sum(held.bytes for _, held in self.all_held() if held.state is State.UNLOADING)

    def all_held(self) -> Iterator[tuple[Place, Held]]:
        """Every model of every executor."""
        return ((place, held) for place in self.places for held in place.held.values())

    def needed_alone(self, models: Iterable[str]) -> int:
        """What an executor with these models and nothing else would take."""
        least = min((place.least_base for place in self.places), default=0)
        return least + sum(self.size(model) for model in models)

    def can_ever_fit(self, models: Iterable[str]) -> bool:
        """Whether the budget has room for these models together."""
        return not self.budget or self.needed_alone(models) <= self.budget

    def forget(self, model: str) -> None:
        """Forget how much a model that couldn't be loaded takes."""
        for known in (self.measured, self.peaks, self.at_least):
            known.pop(model, None)

    # ------------------------------------------------------------------ what happens

    def ask_load(self, place: Place, model: str, now: float) -> int:
        """A model is to be loaded; returns the most that it may take, 0: any."""
        limit = max(1, self.budget - self.used) if self.budget else 0
        place.held[model] = Held(model, State.LOADING, self.need(model, place), now, now)
        return limit

    def loading(self, place: Place, model: str, now: float) -> None:
        """The executor has begun."""
        held = place.held.setdefault(model, Held(model, State.LOADING, self.need(model, place), now, now))
        held.state, held.since, held.begun = State.LOADING, now, True

    def grown(self, place: Place, model: str, growth: int) -> None:
        """While it loads, the executor has grown by so much."""
        held = place.held[model]
        held.bytes = max(held.bytes, growth)
        if model not in place.sizes:
            self.peaks[model] = max(self.peaks.get(model, 0), growth)
        place.peaks[model] = max(place.peaks.get(model, 0), growth)

    def loaded(self, place: Place, model: str, taken: int, seconds: float, now: float) -> None:
        """A model is there."""
        place.held[model] = Held(model, State.RESIDENT, taken, now, now, begun=True)
        if model not in place.sizes or model not in self.measured:
            self.measured[model] = taken
        place.sizes[model] = taken
        self.at_least.pop(model, None)
        self.load_s[model] = seconds
        self.loads[place.index, model] += 1

    def ask_unload(self, place: Place, model: str, now: float) -> None:
        """A model is to go."""
        held = place.held[model]
        held.state, held.since = State.UNLOADING, now

    def gone(self, place: Place, model: str, freed: int | None = None) -> None:
        """A model isn't there any more, which has freed so much; or it couldn't be loaded."""
        held = place.held.pop(model, None)
        if freed is not None and held is not None:
            # What stays is the executor's: its imports, and what its allocator keeps for the next load.
            place.sizes[model] = max(0, min(freed, held.bytes))
            place.base += held.bytes - place.sizes[model]

    def weighed(self, place: Place, resident: int, *, is_new: bool = False) -> None:
        """So much does an executor take in all, its models included."""
        models = sum(held.bytes for held in place.held.values() if held.state is not State.LOADING)
        place.base = max(0, resident - models)
        if is_new or not place.least_base:
            place.least_base = place.base

    def lost(self, place: Place) -> list[Held]:
        """An executor is gone; returns what it held."""
        held = list(place.held.values())
        place.held, place.sizes, place.peaks = {}, {}, {}
        place.base, place.is_up = 0, False
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

    def next_expiry(self, place: Place) -> float:
        """When the first of an executor's models has; infinity: none will."""
        return min((self.expires_at(held) for held in place.held.values()), default=float("inf"))
