"""Raising `CallStopped` in a body that runs, at most once in a start, and nowhere but in that body.

A body in the main thread gets it from the handler of a signal, which also ends a sleep, a wait for a lock and
a read of a socket. One in another thread gets it from the interpreter, between two of its own steps: waits in
C come to their end first. An asynchronous one is cancelled by its event loop instead.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Final

from gpu_runner.frames import INTERRUPT
from headrace.errors import CallStopped
from headrace.sdk import Call

_raise_in_thread: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = (ctypes.c_ulong, ctypes.py_object)
_NOTHING: Final = ctypes.py_object()
"""Takes back what was raised and hasn't arrived."""
_SWALLOWING: Final = (logging.Handler.handle.__code__, logging.Logger.callHandlers.__code__)
"""Below these, whatever is raised is told on stderr and forgotten: the next attempt must be the one."""


class _Cancelled(CallStopped):
    """What is raised in another thread has to be a class that takes nothing."""

    def __init__(self) -> None:
        super().__init__("the call was cancelled")


class _PastSoftLimit(CallStopped):
    def __init__(self) -> None:
        super().__init__("the call has used up its soft limit")


class Body:
    """The body of one start: whether it runs, and whether it is to be interrupted.

    This class itself is for asynchronous bodies, which are cancelled and need nothing raised.

    Args:
        call: what the function sees of its call.
    """

    # Here and not in each object, since most calls end as they began: that is half of what an object costs.
    is_interrupted = False
    _inside = False
    _raised = False

    def __init__(self, call: Call) -> None:
        self._call = call

    def begin(self) -> None:
        """From here on the exception may be raised in this thread; it is, if it was wanted before."""

    def end(self) -> None:
        """From here on it can't be.

        That holds even where the exception itself cuts this off, as it is raised only once.
        """

    def interrupt(self) -> None:
        """Want the exception raised; again and from any thread, without harm."""
        self.is_interrupted = True

    def _is_due_in(self, thread: int) -> bool:
        """Whether the exception can be raised and hasn't been: nor by `Call.check`, in the same thread.

        A body that has been told so is left to clean up until it is killed.
        """
        return self._inside and self.is_interrupted and not self._raised and self._call.told_in != thread


class MainBody(Body):
    """One that runs in the main thread; `is_due` and `strike` are for that thread only."""

    def begin(self) -> None:
        """As of `Body`."""
        self._inside = True
        if self.is_interrupted:
            self.strike(None)

    def end(self) -> None:
        """As of `Body`. No lock: the handler runs in this same thread, between two steps."""
        self._inside = False

    def interrupt(self) -> None:
        """As of `Body`; the signal's handler does it."""
        self.is_interrupted = True
        signal_main_thread()

    @property
    def is_due(self) -> bool:
        """Whether the exception is to be raised now."""
        return self._is_due_in(threading.get_ident())

    def strike(self, frame: FrameType | None) -> None:
        """Raise it, if it is due; not where it would be swallowed.

        Args:
            frame: what a signal has come upon.

        Raises:
            CallStopped: it was.
        """
        if self.is_due and not is_inside(frame, _SWALLOWING):
            self._raised = True
            raise _reason(self._call)()


class ThreadBody(Body):
    """One that runs in a thread of a pool, which runs another one next."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._changing = threading.Lock()
        self._thread = 0

    def begin(self) -> None:
        """As of `Body`."""
        self._thread = threading.get_ident()
        with self._changing:
            self._inside = True
            self._raise()

    def end(self) -> None:
        """As of `Body`."""
        with self._changing:
            self._inside = False
            if self._raised:
                _raise_in_thread(self._thread, _NOTHING)

    def interrupt(self) -> None:
        """As of `Body`."""
        with self._changing:
            self.is_interrupted = True
            self._raise()

    def _raise(self) -> None:
        if self._is_due_in(self._thread) and not self._swallows():
            self._raised = True
            _raise_in_thread(self._thread, ctypes.py_object(_reason(self._call)))

    def _swallows(self) -> bool:
        frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - it is documented
        return is_inside(frames.get(self._thread), _SWALLOWING)


def _reason(call: Call) -> type[_Cancelled | _PastSoftLimit]:
    return _Cancelled if call.is_stopped else _PastSoftLimit


# ---------------------------------------------------------------------- the signal


signals_handler: Final[Callable[[int], object]] = importlib.import_module("_signal").getsignal
"""`signal.getsignal` without its search for the handler's name, which takes a hundred times as long."""


def signal_main_thread() -> None:
    """Have the handler run in the main thread, which may wait in a system call."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, INTERRUPT)


def is_inside(frame: FrameType | None, codes: Iterable[CodeType]) -> bool:
    """Whether any of these functions is being executed at, or below, that frame."""
    known = frozenset(codes)
    while frame is not None:
        if frame.f_code in known:
            return True
        frame = frame.f_back
    return False
