"""What becomes of a model that an operator wants loaded, or unloaded."""

from __future__ import annotations

from typing import Protocol

from gpu_runner.residency.book import Book, State
from headrace.runner_requests import ModelAnswer


class Models(Protocol):
    """A runner's models, as far as operators can say what becomes of them."""

    @property
    def book(self) -> Book:
        """What is where."""
        ...

    def load(self, model: str) -> None:
        """Have a model loaded, one that has failed as well; nothing happens where it is."""
        ...

    def unload(self, model: str) -> bool:
        """Have a model unloaded everywhere; whether it is idle everywhere."""
        ...


def load(models: Models, model: str) -> ModelAnswer:
    """Have a model loaded, in one executor at least.

    Args:
        models: the runner's.
        model: its name.
    """
    book = models.book
    if model not in book.specs:
        return ModelAnswer(outcome="unknown")
    load_s = book.load_s.get(model, 0.0)
    if any(place.is_up and place.has((model,)) for place in book.places):
        return ModelAnswer(outcome="loaded", load_s=load_s)
    models.load(model)  # which forgets what was measured wrongly
    if not book.can_ever_fit((model,)):
        reason = f"it needs {book.needed_alone((model,))} bytes, its executor included"
        return ModelAnswer(outcome="too-large", reason=f"{reason}; HEADRACE_MEMORY allows {book.budget}")
    return ModelAnswer(outcome="loading", load_s=load_s)


def unload(models: Models, model: str) -> ModelAnswer:
    """Have a model unloaded in all executors.

    Args:
        models: the runner's.
        model: its name.
    """
    book = models.book
    if model not in book.specs:
        return ModelAnswer(outcome="unknown")
    held = [one for _, one in book.all_held() if one.model == model]
    if not any(one.state is not State.UNLOADING for one in held):
        return ModelAnswer(outcome="unloading" if held else "absent")
    is_idle = models.unload(model)
    return ModelAnswer(outcome="unloading" if is_idle else "in-use", users=sum(one.users for one in held))
