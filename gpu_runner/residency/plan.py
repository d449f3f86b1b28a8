"""What to load and what to unload, decided from the book alone.

Whoever waits longest comes first. What it needs is loaded where least is missing; where there is no room,
models are unloaded, those first that were used longest ago, and never one in use. While the room that is
needed is in use, its models take no new calls, once they have been of use for a while: so that two functions
that don't fit together each run for at least twice as long as they take to load. Only the first that lacks
room makes any: it would be taken from under the others.

What takes more than the budget all the same, as nobody knew its size before, is brought back under it: idle
models go, those that somebody waits for last, of which one executor keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_runner.residency.book import Book, Held, Place, State

_ONE_MORE_AFTER_S = 1.0


class Want(NamedTuple):
    """Somebody waits for these models to be together in an executor.

    `at` are the executors that will do. `free` are those of them where its call could start at once, were
    the models there. `is_gentle`: nothing is to be kept from others for it.
    """

    models: tuple[str, ...]
    since: float
    at: frozenset[int]
    free: frozenset[int] = frozenset()
    is_gentle: bool = False


class Load(NamedTuple):
    """An executor is to load a model."""

    place: int
    model: str


class Unload(NamedTuple):
    """An executor is to let go of a model."""

    place: int
    model: str


@dataclass(slots=True)
class Plan:
    """What to do now, in order; and which models take no new calls, as (executor, model)."""

    steps: list[Load | Unload] = field(default_factory=list[Load | Unload])
    condemned: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    blocked: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    """Of wants, the models for which there is no room yet."""
    kept: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """What somebody waits for, as (executor, model)."""


def plan(book: Book, wants: Iterable[Want], now: float) -> Plan:
    """Decide what is to be done for those who wait, and for what nobody has used for long.

    Args:
        book: what is where.
        wants: those who wait.
        now: the instant.
    """
    return _Planning(book, now).of(sorted(wants, key=lambda want: (want.is_gentle, want.since)))


class _Planning:
    """One round of decisions."""

    def __init__(self, book: Book, now: float) -> None:
        self._book = book
        self._now = now
        self._plan = Plan()
        self._spoken_for = 0
        self._leaving = book.leaving
        self._kept = self._plan.kept
        self._firm: set[tuple[int, str]] = set()
        """Of what is kept, that of which there may be no more than this."""
        self._able: list[tuple[tuple[str, ...], set[int]]] = []
        """The models of those whose calls can start, and where."""
        self._busy = {place.index for place in book.places if place.is_moving}
        self._makes_room = True

    def of(self, wants: Sequence[Want]) -> Plan:
        for want in wants:
            self._serve(want)
        self._expire()
        self._shrink()
        return self._plan

    # ------------------------------------------------------------------ those who wait

    def _serve(self, want: Want) -> None:
        places = [place for place in self._book.places if place.is_up and place.index in want.at]
        if not places:
            return
        able = [place for place in places if _is_there(place, want.models)]
        if able:
            self._able.append((want.models, {place.index for place in able}))
            for place in able:
                self._kept.update((place.index, model) for model in want.models)
            self._load_one_more(want, places)
            return
        coming = [place for place in places if not place.lacks(want.models) and _stays(place, want.models)]
        if coming:
            for place in coming:
                self._keep(place, want.models)
            return
        place = min(places, key=lambda place: self._preference(place, want))
        missing, needed = place.lacks(want.models), self._book.needed(place, want.models)
        self._keep(place, want.models)
        if not missing or place.index in self._busy:  # it unloads what is wanted again, or loads another
            self._spoken_for += needed
            return
        if self._has_room(needed):
            self._load(place, missing[0], needed)
            return
        self._plan.blocked.add(want.models)
        if self._makes_room:
            self._make_room(place, needed, want)
        self._spoken_for += needed
        self._makes_room = False

    def _preference(self, place: Place, want: Want) -> tuple[bool, bool, bool, int, bool, bool, int]:
        """What sorts the best place first: a load waits for what runs in the main thread."""
        needed = self._book.needed(place, want.models)
        held = [place.held[model] for model in want.models if model in place.held]
        return (
            all(one.state is not State.LOADING for one in held),  # one of several is on its way there
            place.index in self._busy,
            place.is_running or not self._has_room(needed),
            needed,
            place.is_running,
            place.index not in want.free,
            place.index,
        )

    def _has_room(self, needed: int) -> bool:
        book = self._book
        return not book.budget or book.used + self._spoken_for + needed <= book.budget

    def _load(self, place: Place, model: str, needed: int) -> None:
        """Load a model, the first of several that take so much together."""
        self._plan.steps.append(Load(place.index, model))
        self._spoken_for += needed
        self._busy.add(place.index)

    def _unload(self, place: Place, held: Held) -> None:
        self._plan.condemned.add((place.index, held.model))
        self._plan.steps.append(Unload(place.index, held.model))
        self._busy.add(place.index)

    def _keep(self, place: Place, models: Iterable[str]) -> None:
        self._kept.update((place.index, model) for model in models)
        self._firm.update((place.index, model) for model in models)

    def _load_one_more(self, want: Want, places: Sequence[Place]) -> None:
        """Who has waited for a slot as long as a load takes, is as well served by a load elsewhere."""
        load_s = sum(self._book.load_s.get(model, 0.0) for model in want.models)
        if self._now - want.since < max(_ONE_MORE_AFTER_S, load_s):
            return
        for place in places:
            missing = place.lacks(want.models)
            is_free = place.index in want.free and place.index not in self._busy and not place.is_running
            if is_free and missing:
                needed = self._book.needed(place, want.models)
                if self._has_room(needed):
                    self._keep(place, want.models)
                    self._load(place, missing[0], needed)
                return

    # ------------------------------------------------------------------ room

    def _make_room(self, at: Place, needed: int, want: Want) -> None:
        """Have the models used longest ago go, as many as it takes, if that is enough."""
        book = self._book
        short = book.used + self._spoken_for + needed - book.budget - self._leaving
        victims: list[tuple[Place, Held]] = []
        for place, held in sorted(self._candidates(), key=lambda one: _age(one[1])):
            if short <= 0:
                break
            victims.append((place, held))
            short -= held.bytes
        if short <= 0:
            self._let_go(_needed_of(victims, -short), want)
            return
        # Measured as nothing, a model may hold the room as well as another.
        held = sum(place is not at or one.model not in want.models for place, one in book.all_held())
        if not self._leaving and not self._spoken_for and len(victims) == held:
            self._let_go(victims, want)  # nothing else holds the room: neither loads, nor older wants
            if not victims:
                self._try_all_the_same(want)

    def _let_go(self, victims: Sequence[tuple[Place, Held]], want: Want) -> None:
        """Unload these; while some are in use, no call starts with those, and the others stay for now."""
        are_idle = not any(held.users for _, held in victims)
        for place, held in victims:
            if not self._book.is_ripe(held, self._now) or (want.is_gentle and not are_idle):
                continue
            if are_idle:
                self._unload(place, held)
            elif held.users or held.condemned:
                self._plan.condemned.add((place.index, held.model))

    def _candidates(self) -> list[tuple[Place, Held]]:
        return [
            (place, held)
            for place, held in self._book.all_held()
            if place.is_up and held.state is State.RESIDENT and (place.index, held.model) not in self._kept
        ]

    def _try_all_the_same(self, want: Want) -> None:
        """By the book it fits into a new executor, but this one takes more than it did at first.

        If it is too much indeed, the load is broken off, and the executor replaced.
        """
        places = [
            place
            for place in self._book.places
            if place.is_up and place.index in want.at and place.index not in self._busy
        ]
        if places and self._book.can_ever_fit(want.models):
            place = min(places, key=lambda place: (len(place.lacks(want.models)), place.is_running))
            self._load(place, place.lacks(want.models)[0], self._book.needed(place, want.models))

    # ------------------------------------------------------------------ what nobody uses

    def _expire(self) -> None:
        for place, held in self._book.all_held():
            if (
                place.is_up
                and (place.index, held.model) not in self._kept
                and self._book.expires_at(held) <= self._now
                and Unload(place.index, held.model) not in self._plan.steps
            ):
                self._unload(place, held)

    # ------------------------------------------------------------------ what is too much

    def _shrink(self) -> None:
        """Have idle models go while all of them take more than the budget."""
        excess = self._book.excess
        going = {(step.place, step.model) for step in self._plan.steps if isinstance(step, Unload)}
        found: list[tuple[bool, float, Place, Held]] = []
        for place, held in self._book.all_held():
            key = (place.index, held.model)
            if key in going:
                excess -= held.bytes
            elif place.is_up and held.bytes and held.state is State.RESIDENT and not held.users:
                found.append((key in self._kept, held.last_use, place, held))
        for is_kept, _, place, held in sorted(found, key=lambda one: one[:2]):
            if excess <= 0:
                return
            if not is_kept or self._can_spare(place, held.model):
                self._unload(place, held)
                excess -= held.bytes

    def _can_spare(self, place: Place, model: str) -> bool:
        """Whether all who wait for a model can start elsewhere; then this place is no longer counted."""
        if (place.index, model) in self._firm:
            return False
        here = [at for models, at in self._able if model in models and place.index in at]
        if any(len(at) == 1 for at in here):
            return False
        for at in here:
            at.discard(place.index)
        return True


def _is_there(place: Place, models: Iterable[str]) -> bool:
    return all(model in place.held and place.held[model].state is State.RESIDENT for model in models)


def _stays(place: Place, models: Iterable[str]) -> bool:
    return all(place.held[model].state is not State.UNLOADING for model in models)


def _age(held: Held) -> tuple[bool, float]:
    """What sorts those that were used longest ago first, and those in use last."""
    return bool(held.users), held.since if held.users else held.last_use


def _needed_of(victims: Sequence[tuple[Place, Held]], spare: int) -> list[tuple[Place, Held]]:
    """Those of them that it takes, where all of them together free so many bytes too many."""
    needed: list[tuple[Place, Held]] = []
    for place, held in victims:
        if held.bytes <= spare:
            spare -= held.bytes
        else:
            needed.append((place, held))
    return needed
