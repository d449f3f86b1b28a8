"""What an executor loads before it takes calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpu_runner.residency.book import Book, Place
from gpu_runner.residency.failures import Failures
from headrace.domain import FOREVER


class Preload(NamedTuple):
    """These models, which may take that share of the budget together."""

    models: tuple[str, ...]
    share: float = 1.0


def choose_preload(
    book: Book, place: Place, again: Iterable[str], failures: Failures, now: float, together: int = 1
) -> Preload:
    """What was there before, and what is to be there always, as far as there is room.

    What hasn't been loaded yet, and has no declared size, counts as nothing: all of it is loaded. Executors
    that start together share the room that is left.

    Args:
        book: where this is noted.
        place: the executor.
        again: what its last life held, what was used last first.
        failures: what can't be loaded now.
        now: the instant.
        together: how many executors start now, this one included.
    """
    always = (spec.name for spec in book.specs.values() if spec.keep_alive == FOREVER)
    place.base = place.least_base
    chosen: list[str] = []
    for model in dict.fromkeys((*again, *always)):
        fits = not book.budget or book.used + book.need(model, place) <= book.budget
        if fits and model not in failures:
            book.ask_load(place, model, now)
            chosen.append(model)
    if not book.budget:
        return Preload(tuple(chosen), 1 / together)
    needed = sum(place.held[model].bytes for model in chosen)
    limit = max(1, needed + max(0, book.budget - book.used) // together)
    for model in chosen:
        place.held[model].limit = limit
    return Preload(tuple(chosen), limit / book.budget)
