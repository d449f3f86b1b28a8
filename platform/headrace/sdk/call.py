"""The running call, as its function sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import CallStopped, DeclarationError

if TYPE_CHECKING:
    from headrace.sdk.functions import Function

In = TypeVar("In")
Out = TypeVar("Out")


class Call:
    """One attempt at a call. Its methods may be used from any thread.

    Args:
        job_id: the call's id, also when it isn't in the ledger.
        attempt: which start this is, from 1.
        soft_at: when `check` begins to raise, on the clock of `time.monotonic`.
        deadline_at: when the attempt is killed, on the same clock.
        report: takes progress; None drops it.
        look_up: called by `check` first, where news of a stop must be fetched.
    """

    __slots__ = ("_deadline_at", "_look_up", "_report", "_soft_at", "_stopped", "attempt", "job_id")

    def __init__(
        self,
        *,
        job_id: str,
        attempt: int,
        soft_at: float,
        deadline_at: float,
        report: Callable[[float, str], None] | None = None,
        look_up: Callable[[], None] | None = None,
    ) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self._soft_at = soft_at
        self._deadline_at = deadline_at
        self._report = report
        self._look_up = look_up
        self._stopped = False

    def remaining(self) -> float:
        """Seconds until this attempt is killed; 0 when that is due."""
        return max(0.0, self._deadline_at - time.monotonic())

    def check(self) -> None:
        """Return at once while the call may go on; call it between steps of long work.

        Raises:
            CallStopped: the call was cancelled, or has used up its soft limit.
        """
        if self._look_up is not None and not self._stopped:
            self._look_up()
        if self._stopped:
            raise CallStopped("the call was cancelled")
        if time.monotonic() >= min(self._soft_at, self._deadline_at):
            raise CallStopped("the call has used up its soft limit")

    def progress(self, fraction: float, message: str = "") -> None:
        """Tell whoever follows the call how far it is.

        Args:
            fraction: the share that is done, 0 to 1.
            message: what is being done, for people.

        Raises:
            ValueError: the fraction is outside 0 to 1.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be 0 to 1, not {fraction!r}")
        if self._report is not None:
            self._report(float(fraction), message)

    def invoke(self, function: Function[In, Out], input: In) -> Coroutine[Any, Any, Out]:  # noqa: A002 - the platform's word
        """Call another function from inside this one.

        Raises:
            DeclarationError: always, in this version.
        """
        raise DeclarationError(
            f"Call.invoke({function.name!r}) is not yet supported in this version of Headrace"
        )

    @property
    def is_stopped(self) -> bool:
        """Whether the call has been marked as cancelled."""
        return self._stopped

    def stop(self) -> None:
        """Mark the call as cancelled: the next `check` raises."""
        self._stopped = True
