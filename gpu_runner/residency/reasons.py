"""Why functions can't run in an executor."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_runner.residency.book import Book, Place
from gpu_runner.residency.failures import Failures


class Reasons:
    """Says for each executor which functions can't run there, for people.

    Args:
        book: what is where.
        failures: what couldn't be loaded.
        needs: the models of each function that uses any.
    """

    def __init__(self, book: Book, failures: Failures, needs: Mapping[str, tuple[str, ...]]) -> None:
        self.own: dict[int, Mapping[str, str]] = {}
        """What executors said at their start, which is none of a model's fault."""
        self._book = book
        self._failures = failures
        self._needs = needs

    def of(self, place: Place) -> dict[str, str]:
        """The reasons in one executor, by function."""
        reasons = dict(self.own.get(place.index, {}))
        for function, models in self._needs.items():
            if function not in reasons and not place.has(models) and (reason := self._why(models)):
                reasons[function] = reason
        return reasons

    def _why(self, models: tuple[str, ...]) -> str:
        for model in models:
            if model in self._failures:
                return self._failures.reason(model)
        if self._book.can_ever_fit(models):
            return ""
        names = " and ".join(f"model {model}" for model in models)
        needed, budget = self._book.needed_alone(models), self._book.budget
        verb = "needs" if len(models) == 1 else "need together"
        return f"{names} {verb} {needed} bytes, their executor included; HEADRACE_MEMORY allows {budget}"
