"""Models that couldn't be loaded: why, and when it is tried again."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 300.0
_DEATHS = 3  # in a row; a process may have ended for another reason


@dataclass(slots=True)
class Failure:
    """Why a model isn't there. `retry_at` is a `time.monotonic()` instant; infinity: when somebody asks."""

    reason: str
    retry_at: float
    times: int = 1


class Failures:
    """The models that can't be loaded for now, by name."""

    def __init__(self) -> None:
        self.number: Counter[str] = Counter()
        """How often a model has failed, of those that are there by now too."""
        self._failed: dict[str, Failure] = {}
        self._deaths: dict[str, int] = {}

    def __contains__(self, model: object) -> bool:
        return model in self._failed

    def reason(self, model: str) -> str:
        """Why it isn't there, for people; empty where nothing has failed."""
        failure = self._failed.get(model)
        return "" if failure is None else failure.reason

    def failed(self, model: str, reason: str, now: float) -> float:
        """It couldn't be loaded; returns after how many seconds that is tried again."""
        self.number[model] += 1
        times = self._failed[model].times + 1 if model in self._failed else 1
        pause = min(_FIRST_PAUSE_S * 2 ** min(times - 1, 10), _LONGEST_PAUSE_S)
        self._failed[model] = Failure(reason, now + pause, times)
        return pause

    def failed_for_good(self, model: str, reason: str) -> None:
        """It can't be loaded before something here is changed."""
        self.number[model] += 1
        self._failed[model] = Failure(reason, math.inf)

    def died(self, model: str) -> bool:
        """A process ended while it loaded this model; returns whether the model is to blame."""
        self._deaths[model] = self._deaths.get(model, 0) + 1
        return self._deaths[model] >= _DEATHS

    def loaded(self, model: str) -> None:
        """It is there after all."""
        self._failed.pop(model, None)
        self._deaths.pop(model, None)

    def try_again(self, model: str, now: float) -> None:
        """Somebody asks for it: whatever has failed, it is due now."""
        self._deaths.pop(model, None)
        if failure := self._failed.get(model):
            failure.retry_at = now

    def due(self, now: float) -> list[str]:
        """Those to be tried again."""
        return [model for model, failure in self._failed.items() if failure.retry_at <= now]

    def next_at(self, now: float) -> float:
        """When the next one will be due that isn't yet; infinity: none will be."""
        times = (failure.retry_at for failure in self._failed.values())
        return min((at for at in times if at > now), default=math.inf)
