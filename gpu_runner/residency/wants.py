"""Who waits for models: calls, operators, and calls that were refused and will come again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_runner.calls import LocalCall
from gpu_runner.residency.book import Book
from gpu_runner.residency.plan import Want
from gpu_runner.slots import MAIN, Slots

if TYPE_CHECKING:
    from gpu_runner.children.executors import ExecutorProcess

Waiting = tuple[LocalCall, Slots]
"""A call that waits, and the slots that it waits for one of."""


def wants_of(
    waiting: Iterable[Waiting], needs: Mapping[str, tuple[str, ...]], executors: Sequence[ExecutorProcess]
) -> list[Want]:
    """What calls wait for: one want for each set of models, since its first call came.

    Args:
        waiting: the calls.
        needs: the models of each function that uses any.
        executors: those that are ready.
    """
    first: dict[tuple[tuple[str, ...], frozenset[int]], Want] = {}
    for call, slots in waiting:
        models = needs.get(call.frame.function)
        if models is None:
            continue
        able = [one for one in executors if call.frame.function not in one.degraded]
        closed = [one for one in able if one.closed_for is call]
        if not call.alone:
            able = [one for one in able if one.closed_for is None]
        at = frozenset(one.index for one in closed or able)
        known = first.get((models, at))
        if known is None or call.received_at < known.since:
            free = frozenset(one.index for one in closed or able if has_free_slot(one, slots))
            first[models, at] = Want(models, call.received_at, at, free)
    return list(first.values())


def has_free_slot(executor: ExecutorProcess, slots: Slots) -> bool:
    """Whether a call could start in an executor at once, but for its models."""
    if executor.is_moving and slots.room.name == MAIN:
        return False
    return executor.busy[slots.room.name] < slots.per_executor


class Asked:
    """What is wanted without a call that waits, and what is to go as an operator said so."""

    def __init__(self) -> None:
        self.to_go: set[tuple[int, str]] = set()
        self._since: dict[tuple[str, ...], tuple[float, float]] = {}

    def ask(self, models: tuple[str, ...], now: float, seconds: float) -> None:
        """These are wanted, for so long at most."""
        since, _ = self._since.get(models, (now, 0.0))
        self._since[models] = since, now + seconds
        self.to_go = {(place, model) for place, model in self.to_go if model not in models}

    def has(self, model: str) -> bool:
        """Whether a model is asked for."""
        return any(model in models for models in self._since)

    def drop(self, model: str) -> None:
        """A model is no longer asked for."""
        self._since = {models: times for models, times in self._since.items() if model not in models}

    def forget_past(self, now: float, book: Book) -> None:
        """Forget what has been done, or has taken too long."""
        self._since = {
            models: (since, until)
            for models, (since, until) in self._since.items()
            if now < until and not any(place.has(models) for place in book.places)
        }
        there = {(place.index, held.model) for place, held in book.all_held()}
        self.to_go &= there

    def wants(self, places: Iterable[int]) -> list[Want]:
        """What is asked for, in these executors."""
        at = frozenset(places)
        return [Want(models, since, at) for models, (since, _) in self._since.items()]
