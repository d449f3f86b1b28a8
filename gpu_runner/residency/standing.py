"""How the models of a runner stand, for whoever reports or shows it."""

from __future__ import annotations

from typing import NamedTuple

from gpu_runner.residency.book import Book
from gpu_runner.residency.failures import Failures


class ModelStanding(NamedTuple):
    """A model in one executor.

    `state` is `absent`, `loading`, `resident`, `unloading` or `failed`. `bytes` is what it takes there, or as
    measured where it isn't; 0: not known. `declared` is what its author says; 0: nothing. `users` are the
    calls that use it now, `idle_s` is for how long none has. `loads` is how often this executor has loaded it
    in all its lives, `load_s` how long that took last, anywhere. `reason` says why it has failed.
    """

    executor: int
    model: str
    state: str
    bytes: int
    declared: int
    users: int
    idle_s: float
    loads: int
    load_s: float
    reason: str


class MemoryStanding(NamedTuple):
    """The memory of a device: the budget, 0 while it isn't known, and what executors take of it, in bytes."""

    device: str
    budget: int
    used: int


def standing_of(book: Book, failures: Failures, now: float) -> list[ModelStanding]:
    """Every model in every executor, also where it isn't."""
    standing: list[ModelStanding] = []
    for place in book.places:
        for name, spec in book.specs.items():
            held, reason = place.held.get(name), failures.reason(name)
            standing.append(
                ModelStanding(
                    place.index,
                    name,
                    held.state.value if held else "failed" if reason else "absent",
                    held.bytes if held else book.measured.get(name, 0),
                    spec.memory,
                    held.users if held else 0,
                    max(0.0, now - held.last_use) if held and not held.users else 0.0,
                    book.loads[place.index, name],
                    book.load_s.get(name, 0.0),
                    reason,
                )
            )
    return standing
