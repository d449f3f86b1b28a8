"""What is concluded from loads: what a model takes, that it has failed, or that it needs more room."""

from __future__ import annotations

import logging
import signal

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

    def loaded(self, place: Place, frame: Loaded, now: float, *, is_sure: bool) -> None:
        """A model is there. What it takes is told once, where that wasn't declared, or declared too small.

        It is sure where no calls have run beside.
        """
        self._book.loaded(place, frame.model, frame.bytes, frame.seconds, now, is_sure=is_sure)
        self._failures.loaded(frame.model)
        declared = self._book.specs[frame.model].memory
        if not is_sure or frame.model in self._told or (declared and frame.bytes <= declared * _CLOSE):
            return
        self._told.add(frame.model)
        if declared:
            log.warning(
                'model %s takes %d bytes, and declares %d: write memory="%dMiB"',
                frame.model, frame.bytes, declared, -(-frame.bytes // 2**20),
            )  # fmt: skip
        else:
            log.info("model %s takes %d bytes, loaded in %.2f s", frame.model, frame.bytes, frame.seconds)

    def failed(self, place: Place, frame: LoadFailed, now: float) -> bool:
        """A loader has raised; returns whether the model is to be loaded again at once.

        That is so, once, where the device was full, or the model could have had more of it: with nothing
        beside it, then.
        """
        book, held = self._book, place.held.get(frame.model)
        book.gone(place, frame.model)
        if frame.is_over and held is not None and not held.has_all:
            had_less = any(True for _ in book.all_held()) or 0 < held.limit < book.room
            if had_less:
                known = book.at_least.get(frame.model, 0)
                book.at_least[frame.model] = max(known, min(held.bytes + 1, max(1, book.room)))
                log.warning("%s; it is loaded again once there is more room", frame.reason)
                return True
        book.at_least.pop(frame.model, None)
        pause = self._failures.failed(frame.model, frame.reason, now)
        log.warning("model %s is tried again in %g s", frame.model, pause)
        return False

    def died(self, model: str, exit_code: int | None, now: float) -> None:
        """A process has ended by itself while it loaded this; a negative exit code is a signal's."""
        if self._failures.died(model):
            self._fail(model, f"its process ended while it was loaded{_how(exit_code)}", now)

    def offended(self, offence: Offence, now: float) -> None:
        """A load is broken off, and its executor killed."""
        model, why = offence.model, offence.why
        if offence.growth == 0:
            self._fail(model, why, now)
        elif offence.is_for_good:
            log.error("model %s %s", model, why)
            self._failures.failed_for_good(model, f"model {model} {why}")
        elif offence.is_shared and model in self._book.at_least:
            self._fail(model, f"with calls beside, it {why}", now)
        else:
            grown = offence.growth
            log.warning("model %s has grown to %d bytes; it is tried again with more room", model, grown)
            self._book.at_least[model] = grown

    def asked_again(self, model: str, now: float, *, is_too_large: bool) -> None:
        """An operator wants it loaded: what has failed is due now, and maybe smaller than it was.

        So is what was measured, and is too large by that for some function.
        """
        if model in self._failures or is_too_large:
            self._book.forget(model)
        self._failures.try_again(model, now)

    def _fail(self, model: str, why: str, now: float) -> None:
        pause = self._failures.failed(model, f"model {model} could not be loaded: {why}", now)
        log.error("model %s could not be loaded: %s; it is tried again in %g s", model, why, pause)


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return ""
    if exit_code >= 0:
        return f" (exit code {exit_code})"
    try:
        return f" (signal {signal.Signals(-exit_code).name})"
    except ValueError:  # real-time ones have no names
        return f" (signal {-exit_code})"
