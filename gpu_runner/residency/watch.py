"""Watches executors while they load: how long that takes, and how much memory on a CPU."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpu_runner.frames import Loading
from gpu_runner.residency.book import Book, Place, State
from gpu_runner.residency.memory import resident


class Offence(NamedTuple):
    """Why an executor that loads is to be killed.

    `growth` is 0 where it only takes too long. `is_for_good`: the model alone is too large. `is_shared`:
    calls ran beside, whose part of the growth nobody knows.
    """

    place: int
    model: str
    why: str
    growth: int = 0
    is_for_good: bool = False
    is_shared: bool = False


@dataclass(slots=True)
class _Load:
    model: str
    began: float
    pid: int | None
    resident: int
    expected: int
    is_shared: bool


class Watch:
    """The loads that have begun.

    Args:
        book: where growth is noted.
        timeout_s: how long one may take.
    """

    def __init__(self, book: Book, timeout_s: float) -> None:
        self.is_cpu = False
        self._book = book
        self._timeout_s = timeout_s
        self._loads: dict[int, _Load] = {}

    @property
    def is_watching(self) -> bool:
        """Whether anything loads."""
        return bool(self._loads)

    def begins(self, place: Place, frame: Loading, pid: int | None, *, is_shared: bool = False) -> None:
        """An executor has begun to load, maybe while calls run beside."""
        expected = self._book.need(frame.model, place)
        if frame.resident >= 0:
            self.is_cpu = True
            before = sum(held.bytes for held in place.held.values() if held.state is State.RESIDENT)
            place.note_base(frame.resident - before)
        self._loads[place.index] = _Load(
            frame.model, time.monotonic(), pid, frame.resident, expected, is_shared
        )

    def shares(self, index: int) -> None:
        """A call starts in an executor."""
        if load := self._loads.get(index):
            load.is_shared = True

    def is_shared(self, place: Place) -> bool:
        """Whether calls have run beside what an executor loads."""
        load = self._loads.get(place.index)
        return load is not None and load.is_shared

    def ends(self, place: Place) -> bool:
        """It has ended, or its executor; returns whether that was killed for it."""
        self._loads.pop(place.index, None)
        return place.is_dying

    def offences(self, now: float) -> Iterator[Offence]:
        """Those that can't go on; each is told once."""
        for index, load in list(self._loads.items()):
            offence = self._slow(index, load, now) or self._large(index, load)
            if offence is not None:
                del self._loads[index]
                self._book.places[index].is_dying = True
                yield offence

    def _slow(self, index: int, load: _Load, now: float) -> Offence | None:
        if now - load.began < self._timeout_s:
            return None
        return Offence(index, load.model, f"loading took over {self._timeout_s:g} s")

    def _large(self, index: int, load: _Load) -> Offence | None:
        book = self._book
        if load.resident < 0 or load.pid is None or not book.budget:
            return None
        growth = resident(load.pid) - load.resident
        if growth <= 0:
            return None
        book.grown(book.places[index], load.model, growth, is_sure=not load.is_shared)
        used = sum(place.used for place in book.places if not place.is_dying)
        if growth <= load.expected or used <= book.budget:
            return None
        room = max(1, book.room)
        return Offence(
            index,
            load.model,
            f"needs more than the {room} bytes that HEADRACE_MEMORY={book.budget} leaves beside executors",
            min(growth, room) if load.is_shared else growth,
            is_for_good=growth > room and not load.is_shared,
            is_shared=load.is_shared,
        )

    def seconds_to(self, place: Place, models: Iterable[str], now: float) -> float:
        """Until an executor has these models, and is through with what it loads now."""
        book, load = self._book, self._loads.get(place.index)
        seconds = sum(book.load_s.get(model, 0.0) for model in place.lacks(models))
        for held in place.held.values():
            if held.state is State.LOADING:
                known = book.load_s.get(held.model, 0.0)
                is_begun = load is not None and load.model == held.model
                seconds += max(0.0, known - (now - load.began)) if is_begun and load else known
        return seconds
