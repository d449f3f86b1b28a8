"""What is concluded from loads: what a model takes, that it has failed, or that it needs more room."""

from __future__ import annotations

import logging

from gpu_runner.frames import Loaded, LoadFailed
from gpu_runner.residency.book import Book, Place
from gpu_runner.residency.failures import Failures
from gpu_runner.residency.watch import Offence

log = logging.getLogger(__name__)

_CLOSE = 1.01  # a declaration that is so near is right: allocators take a page more


class Verdicts:
    """Notes in book and failures what has come of loads, and tells operators in the log.

    Args:
        book: of what is where.
        failures: of what couldn't be loaded.
    """

    def __init__(self, book: Book, failures: Failures) -> None:
        self._book = book
        self._failures = failures
        self._told: set[str] = set()

    def loaded(self, place: Place, frame: Loaded, now: float) -> None:
        """A model is there. What it takes is told once, where that wasn't declared, or declared too small."""
        self._book.loaded(place, frame.model, frame.bytes, frame.seconds, now)
        self._failures.loaded(frame.model)
        declared = self._book.specs[frame.model].memory
        if frame.model in self._told or (declared and frame.bytes <= declared * _CLOSE):
            return
        self._told.add(frame.model)
        if declared:
            log.warning("model %s takes %d bytes, and declares memory=%d", frame.model, frame.bytes, declared)
        else:
            log.info("model %s takes %d bytes, loaded in %.2f s", frame.model, frame.bytes, frame.seconds)

    def failed(self, place: Place, frame: LoadFailed, now: float) -> None:
        """A loader has raised. Where the device was full, it is tried once more with nothing beside it."""
        size = place.held[frame.model].bytes if frame.model in place.held else 0
        self._book.gone(place, frame.model)
        others = any(held.model != frame.model for _, held in self._book.all_held())
        if frame.is_over and others and frame.model not in self._book.at_least:
            self._book.at_least[frame.model] = size + 1
            log.warning("%s; it is loaded again once there is more room", frame.reason)
            return
        self._book.at_least.pop(frame.model, None)
        pause = self._failures.failed(frame.model, frame.reason, now)
        log.warning("model %s is tried again in %g s", frame.model, pause)

    def died(self, model: str, now: float) -> None:
        """A process has ended by itself while it loaded this."""
        if self._failures.died(model):
            self._fail(model, "its process ended while it was loaded", now)

    def offended(self, offence: Offence, now: float) -> None:
        """A load is broken off, and its executor killed."""
        model, why = offence.model, offence.why
        if offence.growth == 0:
            self._fail(model, why, now)
        elif offence.is_for_good:
            log.error("model %s %s", model, why)
            self._failures.failed_for_good(model, f"model {model} {why}")
        else:
            grown = offence.growth
            log.warning("model %s has grown to %d bytes; it is tried again with more room", model, grown)
            self._book.at_least[model] = grown

    def asked_again(self, model: str, now: float) -> None:
        """An operator wants it loaded: what has failed is due now, and maybe smaller than it was."""
        if model in self._failures:
            self._book.forget(model)
        self._failures.try_again(model, now)

    def _fail(self, model: str, why: str, now: float) -> None:
        pause = self._failures.failed(model, f"model {model} could not be loaded: {why}", now)
        log.error("model %s could not be loaded: %s; it is tried again in %g s", model, why, pause)
