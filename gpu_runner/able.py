"""Which executors count for a function: those that can run it, or will once its models are loaded there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_runner.children.executors import ExecutorProcess
from gpu_runner.residency.book import Book, Place, State
from gpu_runner.slots import MAIN, Slots


def able_for(
    function: str, models: Sequence[str], executors: Iterable[ExecutorProcess], book: Book
) -> list[ExecutorProcess]:
    """The executors that run a function's calls, as far as is known now.

    One counts that is ready and has the function's models, or loads them, or could load them into memory that
    is free. Where there is none, those count that are about to let go of them, and without such the first, as
    room is made in one. None does where the function can't run.

    Args:
        function: its name.
        models: what it uses.
        executors: the runner's.
        book: of their models.
    """
    able = [one for one in executors if one.is_ready and function not in one.degraded]
    if not models:
        return able
    places = book.places
    found = [one for one in able if _has_or_loads(places[one.index], models)]
    free = book.budget - book.used
    for one in able:
        place = places[one.index]
        if one not in found and place.lacks(models):
            needed = book.needed(place, models)
            if not book.budget or needed <= free:
                found.append(one)
                free -= needed
    return found or [one for one in able if not places[one.index].lacks(models)] or able[:1]


def busy_in(slots: Slots, executors: Iterable[ExecutorProcess]) -> int:
    """How many calls these executors run in the slots of a group and those that share them, or have next."""
    room = slots.room.name
    return sum(one.busy[room] + (len(one.ahead) if room == MAIN else 0) for one in executors)


def _has_or_loads(place: Place, models: Iterable[str]) -> bool:
    """Whether all of them are there or on their way, and none is about to go."""
    held = [place.held.get(model) for model in models]
    return all(one is not None and one.state is not State.UNLOADING and not one.condemned for one in held)
