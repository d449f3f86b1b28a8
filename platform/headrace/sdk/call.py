"""The running call, as its function sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.errors import CallStopped

if TYPE_CHECKING:
    from headrace.sdk.functions import Function

In = TypeVar("In")
Out = TypeVar("Out")


_LONGEST_MESSAGE: Final = 500

Invoke = Callable[["Function[Any, Any]", Any], Coroutine[Any, Any, Any]]
"""Calls a function with an input, and gives its output."""


class Call:
    """One attempt at a call. Its methods may be used from any thread.

    Args:
        job_id: the call's id, also when it isn't in the ledger.
        attempt: which start this is, from 1.
        soft_at: when `check` begins to raise, on the clock of `time.monotonic`.
        deadline_at: its deadline, or its hard limit where that is earlier, on the same clock.
        report: takes progress; None drops it.
        look_up: called by `check` first, where news of a stop must be fetched.
        joined_to: of a call that runs together with others, what stands for all of them.
        invoke: calls other functions; None runs their bodies here, as a test wants it.
    """

    __slots__ = (
        "_deadline_at",
        "_invoke",
        "_joined_to",
        "_look_up",
        "_report",
        "_soft_at",
        "_stopped",
        "_told_in",
        "attempt",
        "job_id",
    )

    def __init__(
        self,
        *,
        job_id: str,
        attempt: int,
        soft_at: float,
        deadline_at: float,
        report: Callable[[float, str], None] | None = None,
        look_up: Callable[[], None] | None = None,
        joined_to: Call | None = None,
        invoke: Invoke | None = None,
    ) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self._soft_at = soft_at
        self._deadline_at = deadline_at
        self._report = report
        self._look_up = look_up
        self._joined_to = joined_to
        self._invoke = invoke
        self._stopped = False
        self._told_in = 0

    def remaining(self) -> float:
        """Seconds until nobody wants the result: until the deadline, or the hard limit if that is earlier.

        0 from then on. At its hard limit the attempt is killed; at its deadline it is asked to end.
        """
        return max(0.0, self._deadline_at - time.monotonic())

    def check(self) -> None:
        """Return at once while the call may go on; call it between steps of long work.

        Calls that run together go on while one of them may: `is_stopped` says which aren't wanted any more.

        Raises:
            CallStopped: the call was cancelled, or has used up its soft limit.
        """
        if self._joined_to is not None:
            self._joined_to.check()
            return
        if self._look_up is not None and not self._stopped:
            self._look_up()
        if self._stopped:
            self._told_in = threading.get_ident()
            raise CallStopped("the call was cancelled")
        if time.monotonic() >= min(self._soft_at, self._deadline_at):
            self._told_in = threading.get_ident()
            raise CallStopped("the call has used up its soft limit")

    def progress(self, fraction: float, message: str = "") -> None:
        """Tell whoever follows the call how far it is.

        Args:
            fraction: the share that is done, 0 to 1.
            message: what is being done, for people; its first 500 characters are kept.

        Raises:
            TypeError: the fraction isn't a real number, or the message isn't text.
            ValueError: the fraction is outside 0 to 1.
        """
        share, words = _share(fraction), _words(message)
        if self._report is not None:
            self._report(share, words)

    def invoke(self, function: Function[In, Out], input: In) -> Coroutine[Any, Any, Out]:  # noqa: A002 - the platform's word
        """Call another function of the site, from an `async def` body: `await call.invoke(embed, Text(...))`.

        It is a job of the same owner, which ends by this call's deadline at the latest and is cancelled with
        this call. Another attempt at this call gets what the same calls in an earlier one have brought; the
        same is the same function with the same input, the first, second ... of those. While it waits, this
        call gives its slot to others.

        In a test, whose `Call` knows no site, the function's body runs here.

        Args:
            function: as it is imported. It may be served by any runner.
            input: of the function's input type.

        Returns:
            The function's output; of one that streams, what its items are joined to.

        Raises:
            InvocationError: there is no output, when awaited.
            CannotWait: the body isn't async.
        """
        if self._invoke is not None:
            return self._invoke(function, input)
        from headrace.sdk.in_process import run_here  # noqa: PLC0415 - for tests only

        return run_here(self, function, input)

    @property
    def is_stopped(self) -> bool:
        """Whether the call has been cancelled, as the last `check` has learnt: nobody wants its result."""
        return self._stopped or (self._joined_to is not None and self._joined_to.is_stopped)

    @property
    def told_in(self) -> int:
        """The thread in which `check` has raised last; 0 when it hasn't."""
        return self._told_in

    def stop(self) -> None:
        """Mark the call as cancelled: the next `check` raises."""
        self._stopped = True


def _share(fraction: object) -> float:
    if isinstance(fraction, bool) or not isinstance(fraction, Real):
        raise TypeError(f"fraction must be a real number from 0 to 1, not {type(fraction).__name__}")
    number: Any = fraction
    if not 0 <= number <= 1:  # as NaN isn't
        raise ValueError(f"fraction must be 0 to 1, not {fraction!r}")
    return float(number)


def _words(message: object) -> str:
    if not isinstance(message, str):
        raise TypeError(f"message must be a str, not {type(message).__name__}")
    # A file's name may hold lone surrogates, which can't be sent.
    return message[:_LONGEST_MESSAGE].encode("utf-8", "replace").decode()
